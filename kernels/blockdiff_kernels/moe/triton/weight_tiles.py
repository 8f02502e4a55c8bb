"""Tiles of weights in any number format as operands of products, for the kernels of experts.

Knows nothing of what they are multiplied with.
"""

import triton
import triton.language as tl

DENSE: tl.constexpr = tl.constexpr(0)
CHANNEL: tl.constexpr = tl.constexpr(1)
GROUPED: tl.constexpr = tl.constexpr(2)
INT4: tl.constexpr = tl.constexpr(3)


@triton.jit
def widen(b_w):
    """float32 of 8-bit numbers; uint8 ones hold the bits of e4m3 floats, for devices without."""
    if b_w.dtype == tl.uint8:
        b_bits = b_w.to(tl.uint16)
        b_bits = ((b_bits & 0x80) << 8) | ((b_bits & 0x7F) << 7)
        return b_bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    else:
        return b_w.to(tl.float32)


@triton.jit
def scale_of(p_s, m_m, column, groups, GROUP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """Scales of BK columns from ``column`` on, [BM, BK] or [BM, 1]; p_s [BM] are lines' starts."""
    if GROUP >= BK:
        b_s = tl.load(p_s + column // GROUP, mask=m_m, other=0.0)[:, None]
    else:
        o_g = tl.arange(0, BK // GROUP)
        m = m_m[:, None] & (column // GROUP + o_g < groups)[None, :]
        b_s = tl.load(p_s[:, None] + column // GROUP + o_g[None, :], mask=m, other=0.0)
        b_s = tl.broadcast_to(b_s[:, :, None], [BM, BK // GROUP, GROUP])
        b_s = tl.reshape(b_s, [BM, BK])
    return b_s


@triton.jit
def weight_tile(
    p_w, p_s, column, K, groups, sk, m_m, KIND: tl.constexpr, GROUP: tl.constexpr,
    EVEN: tl.constexpr, DOT: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """[BM, BK] of type DOT; p_w [BM, BK] point at column 0. Scales of a whole line are left out."""
    if EVEN:
        b_w = tl.load(p_w + column * sk)
    else:
        m = m_m[:, None] & (column + tl.arange(0, BK) < K)[None, :]
        b_w = tl.load(p_w + column * sk, mask=m, other=0.0)
    if KIND == CHANNEL:
        b_w = widen(b_w).to(DOT)
    elif KIND == GROUPED:
        b_w = (widen(b_w) * scale_of(p_s, m_m, column, groups, GROUP, BM, BK)).to(DOT)
    return b_w


@triton.jit
def int4_tiles(
    p_w, p_s, column, groups, m_m, GROUP: tl.constexpr, DOT: tl.constexpr, BM: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """Columns from ``column`` on and HALF further ones, each [BM, HALF] of type DOT: a span.

    p_w [BM, HALF] point at column 0.
    """
    b_w = tl.load(p_w + column // 2, mask=m_m[:, None], other=0)
    b_s = scale_of(p_s, m_m, column, groups, GROUP, BM, HALF)
    b_low = (((b_w & 15).to(tl.float32) - 8.0) * b_s).to(DOT)
    b_s = scale_of(p_s, m_m, column + HALF, groups, GROUP, BM, HALF)
    b_high = (((b_w >> 4).to(tl.float32) - 8.0) * b_s).to(DOT)
    return b_low, b_high


@triton.jit
def row_tile(p_x, column, K, EVEN: tl.constexpr, BK: tl.constexpr):
    """[BK, BT] of rows of x, at whose column 0 p_x point."""
    if EVEN:
        return tl.load(p_x + column)
    else:
        return tl.load(p_x + column, mask=(column + tl.arange(0, BK) < K)[:, None], other=0.0)
