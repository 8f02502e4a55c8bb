"""What the rows of a block write in a sweep that runs back, as a Triton kernel.

With r the sum of log decays, e = r - g, B = triu(beta k k^T exp(e_j - e_i), 1):
mirror = (I + B)^-1 diag(beta)
Knows nothing of states: the sweep back begins with none.
"""

import triton
import triton.language as tl

from blockdiff_kernels.gated_delta import tiles
from blockdiff_kernels.gated_delta.device import decay_between, load_gates
from blockdiff_kernels.gated_delta.prepare import Prepared
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.gated_delta.solve import PRECISION, unit_lower_inverse
from blockdiff_kernels.launch import launch, power_of_two
from blockdiff_kernels.segments import Segments


@triton.jit
def mirror_kernel(
    x, key, a_log, dt_bias, mirror, starts, lengths, stride, C, Hk, Hv, K: tl.constexpr,
    V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A program has one block of one value head, all of it in one chunk."""
    i_h, i_g = tl.program_id(0), tl.program_id(1)
    T = tl.load(lengths + i_g)
    if T > 0:
        i_start = tl.load(starts + i_g).to(tl.int64)
        o_i, o_k = tl.arange(0, BT), tl.arange(0, BK)
        m_t = o_i < T
        o_r = ((i_start + o_i) * Hk + i_h // (Hv // Hk))[:, None] * K + o_k[None, :]
        m_r = m_t[:, None] & (o_k < K)[None, :]
        b_k = tl.load(key + o_r, mask=m_r, other=0.0)
        p_b = x + i_start * stride + C + Hv * V + i_h
        b_g, b_beta = load_gates(p_b, a_log, dt_bias, i_h, o_i, T, stride, Hv)
        b_late = tl.cumsum(b_g, 0) - b_g
        # transposed, so that it is lower triangular
        b_a = tl.dot(b_k, tl.trans(b_k), input_precision=PRECISION)
        b_a *= b_beta[None, :] * decay_between(b_late, b_late, o_i[:, None] > o_i[None, :])
        b_x = tl.trans(unit_lower_inverse(b_a, BT)) * b_beta[None, :]
        o_m = ((i_start + o_i) * Hv + i_h)[:, None] * BT + o_i[None, :]
        tl.store(mirror + o_m, b_x.to(mirror.dtype.element_ty), mask=m_t[:, None])


def add_mirror(inputs: DeltaRows, prepared: Prepared, segments: Segments) -> Prepared:
    """``prepared`` with the solve of a sweep back; a chunk has all rows of a segment."""
    mirror = prepared.solve.new_empty(prepared.solve.shape)
    shared = inputs.arguments(segments)
    taken = ("x", "starts", "lengths", "stride", "C", "Hk", "Hv", "K", "V")
    arguments = {name: shared[name] for name in taken} | {
        "key": prepared.key,
        "a_log": inputs.a_log,
        "dt_bias": inputs.dt_bias,
        "mirror": mirror,
        "BT": mirror.shape[2],
        "BK": max(16, power_of_two(shared["K"])),
    }
    grid = (shared["Hv"], segments.lengths.shape[0])
    launch(mirror_kernel, grid, arguments, tiles.PREPARE_WARPS)
    return prepared._replace(mirror=mirror)
