"""Block softmax with a history slot over flat rows, as one Triton kernel.

A program has a tile of rows and of the values of one value head of one segment. The slot's logit
needs the length of all of h, so it reads the whole state of its head and keeps its own part of h.
Knows nothing of layers.
"""

import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.block_softmax import tiles
from blockdiff_kernels.conv.triton import convolve
from blockdiff_kernels.gated_delta.device import unit_rows
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.gated_delta.solve import PRECISION
from blockdiff_kernels.launch import ceil_div, dot_type, launch, power_of_two
from blockdiff_kernels.segments import Segments


@triton.jit
def block_softmax_kernel(
    x, conv, right_conv, logit_scale, history_bias, history_c, states, tails, out, starts, lengths,
    slots, stride, C, Hk, Hv, K: tl.constexpr, V: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    DOT: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """1 queries; 2 read the history; 3 keys and values, tile by tile, in one pass of a softmax."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_h, i_v = tl.program_id(0) // NV, tl.program_id(0) % NV
    i_t, i_g = tl.program_id(1) * BT, tl.program_id(2)
    T = tl.load(lengths + i_g)
    if i_t < T:
        i_start = tl.load(starts + i_g).to(tl.int64)
        i_slot = tl.load(slots + i_g).to(tl.int64)
        p_x = x + i_start * stride
        p_tail = tails + i_slot * (W - 1) * C
        o_k, o_v, o_i = tl.arange(0, BK), tl.arange(0, BV), tl.arange(0, BT)
        m_k = o_k < K
        i_k = i_h // (Hv // Hk)
        b_q = convolve(
            p_x, p_tail, conv, right_conv, i_t, i_k * K + o_k, m_k, T, stride, C, W, R, BT
        )
        b_q = unit_rows(b_q).to(DOT)
        b_squares = tl.zeros([BT], tl.float32)
        b_o = tl.zeros([BT, BV], tl.float32)
        p_s = states + (i_slot * Hv + i_h) * K * V + o_k[:, None] * V
        for i in range(NV):
            o_s = i * BV + o_v
            m_s = m_k[:, None] & (o_s < V)[None, :]
            b_s = tl.load(p_s + o_s[None, :], mask=m_s, other=0.0).to(DOT)
            b_h = tl.dot(b_q, b_s, input_precision=PRECISION) * (K**-0.5)
            b_squares += tl.sum(b_h * b_h, 1)
            b_o = tl.where(i == i_v, b_h, b_o)
        b_max = tl.load(history_c + i_h) * tl.sqrt(b_squares) + tl.load(history_bias + i_h)
        b_sum = tl.full([BT], 1.0, tl.float32)
        b_scale = tl.load(logit_scale + i_h)
        o_v += i_v * BV
        m_v = o_v < V
        for i_j in range(0, T, BT):
            b_k = convolve(
                p_x, p_tail, conv, right_conv, i_j, (Hk + i_k) * K + o_k, m_k, T, stride, C, W, R,
                BT,
            )  # fmt: skip
            b_k = unit_rows(b_k).to(DOT)
            b_l = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * b_scale
            b_l = tl.where((i_j + o_i < T)[None, :], b_l, float("-inf"))
            b_new = tl.maximum(b_max, tl.max(b_l, 1))
            b_p = tl.exp(b_l - b_new[:, None])
            b_rescale = tl.exp(b_max - b_new)
            b_max = b_new
            b_sum = b_sum * b_rescale + tl.sum(b_p, 1)
            b_v = convolve(
                p_x, p_tail, conv, right_conv, i_j, 2 * Hk * K + i_h * V + o_v, m_v, T, stride, C,
                W, R, BT,
            )  # fmt: skip
            b_o = b_o * b_rescale[:, None]
            b_o += tl.dot(b_p.to(DOT), b_v.to(DOT), input_precision=PRECISION)
        b_o = b_o / b_sum[:, None]
        o_o = ((i_start + i_t + o_i) * Hv + i_h)[:, None] * V + o_v[None, :]
        m_o = (i_t + o_i < T)[:, None] & m_v[None, :]
        tl.store(out + o_o, b_o.to(out.dtype.element_ty), mask=m_o)


def block_softmax(
    inputs: DeltaRows,
    right_weight: Tensor,
    vectors: tuple[Tensor, Tensor, Tensor],
    segments: Segments,
    out: Tensor,
) -> None:
    """See ``block_softmax_rows`` of the package."""
    assert right_weight.is_contiguous()
    _, value_heads, key_dim, value_dim = inputs.states.shape
    tile = tiles.block(segments.longest, value_dim)
    arguments = inputs.arguments(segments) | {
        "conv": inputs.conv,
        "right_conv": right_weight,
        "logit_scale": vectors[0],
        "history_bias": vectors[1],
        "history_c": vectors[2],
        "states": inputs.states,
        "out": out,
        "R": right_weight.shape[1],
        "DOT": dot_type(inputs.rows.dtype),
        "BT": tile.rows,
        "BK": max(16, power_of_two(key_dim)),
        "BV": tile.values,
    }
    programs = value_heads * ceil_div(value_dim, tile.values)
    grid = (programs, ceil_div(segments.longest, tile.rows), segments.lengths.shape[0])
    launch(block_softmax_kernel, grid, arguments, tile.num_warps)
