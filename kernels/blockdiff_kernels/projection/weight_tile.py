"""Tiles of weights as a projection's kernel multiplies them, whatever they are stored as.

Knows nothing of sources.
"""

import triton
import triton.language as tl

NO_SCALE: tl.constexpr = tl.constexpr(0)
BY_OUTPUT: tl.constexpr = tl.constexpr(1)
BY_TILE: tl.constexpr = tl.constexpr(2)
BY_COLUMN: tl.constexpr = tl.constexpr(3)


@triton.jit
def e4m3_to_float32(b_bits):
    """uint8 bits of float8_e4m3fn -> float32: in bfloat16 the exponent's bias is 120 larger."""
    b_bits = b_bits.to(tl.uint16)
    b_bits = ((b_bits & 0x80) << 8) | ((b_bits & 0x7F) << 4)
    return b_bits.to(tl.bfloat16, bitcast=True).to(tl.float32) * 1.329227995784916e36


@triton.jit
def scale_tile(scale, o_n, o_k, m_n, m_k, k, group, groups, SCALE: tl.constexpr):
    """Scales [BN, 1] of a tile of columns from ``k`` on, or [BN, BK] of single columns."""
    if SCALE == BY_TILE:
        b_scale = tl.load(scale + o_n * groups + k // group, mask=m_n, other=0.0)[:, None]
    else:
        o_s = o_n[:, None] * groups + o_k[None, :] // group
        b_scale = tl.load(scale + o_s, mask=m_n[:, None] & m_k[None, :], other=0.0)
    return b_scale


@triton.jit
def weight_tile(
    w, scale, o_n, o_k, m_n, m_k, k, w_row, group, groups, SCALE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Weights [BN, BK] for a product; those with a scale by output are not scaled yet."""
    o_w = o_n[:, None] * w_row + o_k[None, :]
    b_w = tl.load(w + o_w, mask=m_n[:, None] & m_k[None, :], other=0.0)
    if w.dtype.element_ty == tl.uint8:
        b_w = e4m3_to_float32(b_w)
    if SCALE >= BY_TILE:
        b_scale = scale_tile(scale, o_n, o_k, m_n, m_k, k, group, groups, SCALE)
        b_w = b_w.to(tl.float32) * b_scale
    return b_w.to(DOT)
