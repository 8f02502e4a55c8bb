"""Chunk after chunk of prepared rows through the state, as a Triton kernel.

A program has a tile of the values of one value head of one segment, and keeps its part of the state
in registers: U = solve (v - exp(r) k S);  o = exp(r) q S + tril(mixing) U;
S <- exp(r_last) S + k^T exp(r_last - r) U. A sweep back adds triu(mixing, 1) mirror v.
Knows nothing of gates, and of convolutions only the tail that stays.
"""

import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.conv.triton import keep_tail
from blockdiff_kernels.gated_delta import tiles
from blockdiff_kernels.gated_delta.prepare import Prepared
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.gated_delta.solve import PRECISION
from blockdiff_kernels.launch import ceil_div, launch, power_of_two
from blockdiff_kernels.segments import Segments


@triton.jit
def scan_kernel(
    x, query, key, value, decay, solve, mixing, mirror, states, tails, out,
    starts, lengths, slots, snapshots, stride, C, Hk, Hv, K: tl.constexpr, V: tl.constexpr,
    W: tl.constexpr, KEEPS: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """1 load the state; 2 mix chunks; 3 for commits, keep the state and the tail."""
    NV: tl.constexpr = (V + BV - 1) // BV
    DOT: tl.constexpr = key.dtype.element_ty
    i_h, i_v, i_g = tl.program_id(0) // NV, tl.program_id(0) % NV, tl.program_id(1)
    T = tl.load(lengths + i_g)
    if T > 0:
        i_start = tl.load(starts + i_g).to(tl.int64)
        i_slot = tl.load(slots + i_g).to(tl.int64)
        o_k, o_v, o_i = tl.arange(0, BK), i_v * BV + tl.arange(0, BV), tl.arange(0, BT)
        m_k, m_v = o_k < K, o_v < V
        i_k = i_h // (Hv // Hk)
        o_s = i_h * K * V + o_k[:, None] * V + o_v[None, :]
        m_s = m_k[:, None] & m_v[None, :]
        b_s = tl.load(states + i_slot * Hv * K * V + o_s, mask=m_s, other=0.0)
        for i_t in range(0, T, BT):
            m_t = i_t + o_i < T
            o_r = i_start + i_t + o_i
            o_h = o_r * Hv + i_h
            o_q = (o_r * Hk + i_k)[:, None] * K + o_k[None, :]
            m_q = m_t[:, None] & m_k[None, :]
            o_o = o_h[:, None] * V + o_v[None, :]
            m_o = m_t[:, None] & m_v[None, :]
            o_c, m_c = o_h[:, None] * BT + o_i[None, :], m_t[:, None] & m_t[None, :]
            b_r = tl.load(decay + o_h, mask=m_t, other=0.0)
            b_last = tl.load(decay + (i_start + min(i_t + BT, T) - 1) * Hv + i_h)
            b_gamma = tl.exp(b_r)[:, None]
            b_k = tl.load(key + o_q, mask=m_q, other=0.0)
            b_v = tl.load(value + o_o, mask=m_o, other=0.0)
            b_u = b_v - b_gamma * tl.dot(b_k, b_s.to(DOT), input_precision=PRECISION)
            b_x = tl.load(solve + o_c, mask=m_c, other=0.0)
            b_u = tl.dot(b_x, b_u.to(DOT), input_precision=PRECISION)
            b_q = tl.load(query + o_q, mask=m_q, other=0.0)
            b_o = tl.dot(b_q, b_s.to(DOT), input_precision=PRECISION) * b_gamma
            b_p = tl.load(mixing + o_c, mask=m_c, other=0.0)
            if mirror is not None:
                b_x = tl.load(mirror + o_c, mask=m_c, other=0.0)
                b_x = tl.dot(b_x, b_v, input_precision=PRECISION).to(DOT)
                is_later = o_i[:, None] < o_i[None, :]
                b_o += tl.dot(tl.where(is_later, b_p, 0.0), b_x, input_precision=PRECISION)
                b_p = tl.where(is_later, 0.0, b_p)
            b_o += tl.dot(b_p, b_u.to(DOT), input_precision=PRECISION)
            tl.store(out + o_o, b_o.to(out.dtype.element_ty), mask=m_o)
            # the rows of the chunk that are not there have a solve of zero
            b_u = (b_u * tl.exp(b_last - b_r)[:, None]).to(DOT)
            b_s *= tl.exp(b_last)
            b_s += tl.dot(tl.trans(b_k), b_u, input_precision=PRECISION)
        if KEEPS:
            i_line = i_slot
            if snapshots is not None:
                i_line = tl.load(snapshots + i_g).to(tl.int64)
            is_copy = (i_line >= 0) & (i_line != i_slot)
            tl.store(states + i_slot * Hv * K * V + o_s, b_s, mask=m_s)
            tl.store(states + i_line * Hv * K * V + o_s, b_s, mask=m_s & is_copy)
            p_x = x + i_start * stride
            p_tail = tails + i_slot * (W - 1) * C
            p_copy = tails + i_line * (W - 1) * C
            o_c = 2 * Hk * K + i_h * V + o_v
            keep_tail(p_x, p_tail, p_copy, o_c, m_v, is_copy, T, stride, C, W)
            m_k = m_k & (i_h % (Hv // Hk) == 0) & (i_v == 0)
            o_c = i_k * K + o_k
            keep_tail(p_x, p_tail, p_copy, o_c, m_k, is_copy, T, stride, C, W)
            keep_tail(p_x, p_tail, p_copy, o_c + Hk * K, m_k, is_copy, T, stride, C, W)


def scan(
    inputs: DeltaRows,
    prepared: Prepared,
    segments: Segments,
    out: Tensor,
    keeps: bool,
    snapshots: Tensor | None = None,
) -> None:
    """Mix prepared rows into ``out``; ``keeps``: write the slots' lines, and ``snapshots`` [G]."""
    _, value_heads, key_dim, value_dim = inputs.states.shape
    tile = tiles.scan(value_dim)
    arguments = (
        inputs.arguments(segments)
        | prepared._asdict()
        | {
            "states": inputs.states,
            "out": out,
            "snapshots": snapshots,
            "KEEPS": keeps,
            "BT": prepared.solve.shape[2],
            "BK": max(16, power_of_two(key_dim)),
            "BV": tile.values,
        }
    )
    grid = (value_heads * ceil_div(value_dim, tile.values), segments.lengths.shape[0])
    launch(scan_kernel, grid, arguments, tile.num_warps, tile.num_stages)
