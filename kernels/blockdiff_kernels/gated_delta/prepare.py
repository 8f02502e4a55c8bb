"""What every chunk of rows needs before a state meets it, all chunks at the same time, in Triton.

With r the sum of log decays inside the chunk, A = tril(beta k k^T exp(r_i - r_j), -1):
solve = (I + A)^-1 diag(beta);  mixing = tril(q k^T exp(r_i - r_j))
Where a second sweep runs back, mixing has triu(q k^T exp(r_j - g_j - r_i), 1) above its diagonal.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.conv.triton import convolve
from blockdiff_kernels.gated_delta import tiles
from blockdiff_kernels.gated_delta.device import decay_between, load_gates, unit_rows
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.gated_delta.solve import PRECISION, unit_lower_inverse
from blockdiff_kernels.launch import ceil_div, dot_type, launch, power_of_two
from blockdiff_kernels.segments import Segments


class Prepared(NamedTuple):
    """By flat row; rows of no segment hold anything."""

    query: Tensor  # [R, Hk, dk] normalised and scaled, in the rows' dtype as all but the decay
    key: Tensor  # [R, Hk, dk] normalised
    value: Tensor  # [R, Hv, dv]
    decay: Tensor  # [R, Hv] float32, r
    solve: Tensor  # [R, Hv, rows of a chunk]
    mixing: Tensor  # [R, Hv, rows of a chunk]
    mirror: Tensor | None = None  # [R, Hv, rows of a chunk], solve of a sweep back, if there is one


@triton.jit
def prepare_kernel(
    x, conv, right_conv, a_log, dt_bias, tails, query, key, value, decay, solve, mixing,
    starts, lengths, slots, stride, C, Hk, Hv, K: tl.constexpr, V: tl.constexpr, W: tl.constexpr,
    R: tl.constexpr, DOT: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """A program has one chunk of one value head; the first head of a key head writes its rows."""
    i_t, i_h, i_g = tl.program_id(0) * BT, tl.program_id(1), tl.program_id(2)
    T = tl.load(lengths + i_g)
    if i_t < T:
        i_start = tl.load(starts + i_g).to(tl.int64)
        p_x = x + i_start * stride
        p_tail = tails + tl.load(slots + i_g).to(tl.int64) * (W - 1) * C
        o_k, o_v, o_i = tl.arange(0, BK), tl.arange(0, BV), tl.arange(0, BT)
        m_k, m_v, m_t = o_k < K, o_v < V, i_t + o_i < T
        o_r = i_start + i_t + o_i
        i_k = i_h // (Hv // Hk)
        is_first = i_h % (Hv // Hk) == 0
        o_q = (o_r * Hk + i_k)[:, None] * K + o_k[None, :]
        m_q = m_t[:, None] & m_k[None, :]
        b_k = convolve(
            p_x, p_tail, conv, right_conv, i_t, (Hk + i_k) * K + o_k, m_k, T, stride, C, W, R, BT
        )
        b_k = unit_rows(b_k).to(DOT)
        tl.store(key + o_q, b_k, mask=m_q & is_first)
        b_kk = tl.dot(b_k, tl.trans(b_k), input_precision=PRECISION)
        b_q = convolve(
            p_x, p_tail, conv, right_conv, i_t, i_k * K + o_k, m_k, T, stride, C, W, R, BT
        )
        b_q = (unit_rows(b_q) * (K**-0.5)).to(DOT)
        tl.store(query + o_q, b_q, mask=m_q & is_first)
        b_qk = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_v = convolve(
            p_x, p_tail, conv, right_conv, i_t, 2 * Hk * K + i_h * V + o_v, m_v, T, stride, C, W,
            R, BT,
        )  # fmt: skip
        o_h = o_r * Hv + i_h
        m_o = m_t[:, None] & m_v[None, :]
        tl.store(value + o_h[:, None] * V + o_v[None, :], b_v.to(DOT), mask=m_o)
        p_b = p_x + C + Hv * V + i_h
        b_g, b_beta = load_gates(p_b, a_log, dt_bias, i_h, i_t + o_i, T, stride, Hv)
        b_run = tl.cumsum(b_g, 0)
        tl.store(decay + o_h, b_run, mask=m_t)
        is_later = o_i[:, None] > o_i[None, :]
        b_a = b_kk * b_beta[:, None] * decay_between(b_run, b_run, is_later)
        b_x = unit_lower_inverse(b_a, BT) * b_beta[None, :]
        o_c = o_h[:, None] * BT + o_i[None, :]
        tl.store(solve + o_c, b_x.to(DOT), mask=m_t[:, None])
        b_d = decay_between(b_run, b_run, o_i[:, None] >= o_i[None, :])
        if right_conv is not None:
            b_d += tl.trans(decay_between(b_run - b_g, b_run, is_later))
        b_p = b_qk * b_d
        tl.store(mixing + o_c, b_p.to(DOT), mask=m_t[:, None])


def prepare(
    inputs: DeltaRows, segments: Segments, chunk: int, right_weight: Tensor | None = None
) -> Prepared:
    """Of all chunks of ``segments``; ``right_weight`` [C, r] makes it that of two sweeps."""
    assert right_weight is None or right_weight.is_contiguous()
    rows, value_heads = inputs.rows.shape[0], inputs.a_log.shape[0]
    key_dim, value_dim = inputs.states.shape[2:]
    like, square = inputs.rows, (rows, value_heads, chunk)
    own = Prepared(
        query=like.new_empty(rows, inputs.key_heads, key_dim),
        key=like.new_empty(rows, inputs.key_heads, key_dim),
        value=like.new_empty(rows, value_heads, value_dim),
        decay=inputs.a_log.new_empty(rows, value_heads),
        solve=like.new_empty(square),
        mixing=like.new_empty(square),
    )
    arguments = (
        inputs.arguments(segments)
        | {name: tensor for name, tensor in own._asdict().items() if tensor is not None}
        | {
            "conv": inputs.conv,
            "right_conv": right_weight,
            "a_log": inputs.a_log,
            "dt_bias": inputs.dt_bias,
            "R": 0 if right_weight is None else right_weight.shape[1],
            "DOT": dot_type(like.dtype),
            "BT": chunk,
            "BK": max(16, power_of_two(key_dim)),
            "BV": max(16, power_of_two(value_dim)),
        }
    )
    chunks = ceil_div(segments.longest, chunk)
    grid = (chunks, value_heads, segments.lengths.shape[0])
    launch(prepare_kernel, grid, arguments, tiles.PREPARE_WARPS)
    return own
