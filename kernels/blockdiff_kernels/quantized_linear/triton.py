"""Projections with quantised weights as Triton kernels; these become the rows' dtype in registers.

8-bit weights go through the kernel of dense ones. Two 4-bit weights of a byte meet the even and the
odd columns of the rows in two products. Knows nothing of layers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import capability
from blockdiff_kernels.projection.epilogue import finish
from blockdiff_kernels.projection.prologue import NORMED, source_tile, weigh
from blockdiff_kernels.projection.sources import Source
from blockdiff_kernels.projection.triton import Weights, project, projection_kernel
from blockdiff_kernels.projection.weight_tile import BY_COLUMN, BY_OUTPUT, BY_TILE, scale_tile

# the first compute capability whose instructions convert float8_e4m3fn
NATIVE_FP8 = (8, 9)
GROUPS_OF_TILES = (32, 64, 128)
LARGEST_GROUP = 128


@triton.jit
def nibbles_to_float32(b_bits):
    """0 to 15 -> -8 to 7: below the exponent of 128 they are a bfloat16's last bits."""
    b_bits = b_bits.to(tl.uint16) | 0x4300
    return b_bits.to(tl.bfloat16, bitcast=True).to(tl.float32) - 136.0


@triton.jit
def int4_kernel(
    x, gate, norm, w, scale, residual, y, squares, R, N, K, x_row, gate_row, w_row, residual_row,
    y_row, group, groups, eps, offset,
    SOURCE: tl.constexpr, GELU: tl.constexpr, SCALE: tl.constexpr, SPLIT: tl.constexpr,
    DOT: tl.constexpr, D: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """As ``projection_kernel``; w [N, K / 2] has an even column in the low half of a byte."""
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_n = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    m_r, m_n = o_r < R, o_n < N
    steps = tl.cdiv(K, D)
    steps_each = tl.cdiv(steps, tl.num_programs(2))
    first = tl.program_id(2) * steps_each
    acc = tl.zeros([BN, BR], tl.float32)
    b_squares = tl.zeros([BK, BR], tl.float32)
    for i in range(first, min(first + steps_each, steps)):
        o_k = i * D + tl.arange(0, BK)
        o_pair = i * (D // 2) + tl.arange(0, BK // 2)
        m_k, m_pair = o_k < K, o_pair < K // 2
        if D != BK:
            m_k = m_k & (tl.arange(0, BK) < D)
            m_pair = m_pair & (tl.arange(0, BK // 2) < D // 2)
        m_x = m_k[:, None] & m_r[None, :]
        b_x = source_tile(
            x, gate, norm, o_r, o_k, m_x, x_row, gate_row, K, eps, SOURCE, GELU, D, BK
        )
        if SOURCE == NORMED:
            b_squares += b_x.to(tl.float32) * b_x.to(tl.float32)
            b_x = weigh(b_x, norm, o_k, m_k, offset)
        b_x = tl.reshape(tl.trans(b_x.to(DOT)), [BR, BK // 2, 2])
        b_even, b_odd = tl.split(b_x)
        o_w = o_n[:, None] * w_row + o_pair[None, :]
        b_w = tl.load(w + o_w, mask=m_n[:, None] & m_pair[None, :], other=0)
        b_low, b_high = nibbles_to_float32(b_w & 15), nibbles_to_float32(b_w >> 4)
        if SCALE != BY_OUTPUT:
            b_scale = scale_tile(scale, o_n, o_pair * 2, m_n, m_pair, i * D, group, groups, SCALE)
            b_low, b_high = b_low * b_scale, b_high * b_scale
        acc = tl.dot(b_low.to(DOT), tl.trans(b_even), acc, input_precision="ieee")
        acc = tl.dot(b_high.to(DOT), tl.trans(b_odd), acc, input_precision="ieee")
    if SCALE == BY_OUTPUT:
        acc *= tl.load(scale + o_n, mask=m_n, other=0.0)[:, None]
    finish(
        acc, tl.sum(b_squares, 0), residual, y, squares, o_r, o_n, m_r, m_n, R, N, K,
        residual_row, y_row, eps, SOURCE, SPLIT,
    )  # fmt: skip


def quantized_projection(
    source: Source,
    values: Tensor,
    scale: Tensor,
    residual: Tensor | None = None,
    y: Tensor | None = None,
) -> Tensor:
    """See the package."""
    is_packed = values.dtype == torch.uint8
    if values.dtype == torch.float8_e4m3fn and capability(values) < NATIVE_FP8:
        values = values.view(torch.uint8)
    group = values.shape[1] * (2 if is_packed else 1) // scale.shape[1]
    scaling, width = _scaling(scale.shape[1], group)
    bits = 4 if is_packed else 8
    weights = Weights(values, bits, scale.contiguous(), group, scaling, width)
    kernel = int4_kernel if is_packed else projection_kernel
    return project(kernel, source, weights, residual, y)


def _scaling(groups: int, group: int) -> tuple[int, int]:
    """How a kernel applies scales, and the columns of its tiles: 0 for any."""
    if groups == 1:
        return int(BY_OUTPUT.value), 0
    if group in GROUPS_OF_TILES:
        return int(BY_TILE.value), group
    if group % LARGEST_GROUP == 0:
        return int(BY_TILE.value), LARGEST_GROUP
    return int(BY_COLUMN.value), 0
