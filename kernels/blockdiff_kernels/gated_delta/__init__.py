"""Gated delta rule with a carried state, per value head (key head = value head // repeats).

k = l2norm(key), q = l2norm(query) / sqrt(dk), l2norm(x) = x rsqrt(sum x^2 + 1e-6)
S <- exp(g_t) S;  S <- S + k_t (beta_t (v_t - S^T k_t))^T;  o_t = S^T q_t
g = -exp(A_log) softplus(a + dt_bias);  beta = sigmoid(b)

two_sweeps, a preview that writes no state: S> runs forward from the carried state and includes
its row, S< runs backward from zero over the rows after it;  o_t = (S>_t + S<_t)^T q_t
S<_T = 0;  S<_{t-1} = exp(g_t) S<_t + k_t (beta_t (v_t - exp(g_t) S<_t^T k_t))^T
"""

from torch import Tensor

from blockdiff_kernels.gated_delta import reference, rows_reference
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.implementation import TRITON, choose
from blockdiff_kernels.pointwise import FAST, Pointwise
from blockdiff_kernels.segments import Segments

# rows of a chunk of the grid that states keep to where results must not depend on the batch
GRID_ROWS = 16


def decay_and_beta(
    a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, pointwise: Pointwise = FAST
) -> tuple[Tensor, Tensor]:
    """Log decay g and write strength beta, float32, from a, b [..., Hv] and A_log, dt_bias [Hv]."""
    return reference.decay_and_beta(a, b, a_log, dt_bias, pointwise)


def gated_delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    mask: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """Run T rows per segment from ``state``; returns (o [G, T, Hv, dv], new state) in its dtype.

    query, key [G, T, Hk, dk] before normalisation; value [G, T, Hv, dv]; log_decay, beta
    [G, T, Hv]; state [G, Hv, dk, dv] float32 (not written in place).
    mask [G, T] bool: False rows are padding, which change neither outputs nor state (None: none).
    """
    return reference.gated_delta(query, key, value, log_decay, beta, state, mask, chunk)


def gated_delta_on_grid(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    anchor: Tensor,
    mask: Tensor,
    whole: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``gated_delta`` from ``anchor``, the state at a point of a grid of ``chunk`` rows.

    T is a multiple of ``chunk``, and rows of ``mask`` False come last: every product has the shape
    of one chunk, so that a row's bits do not depend on how many rows follow. Returns o, the state
    after all rows and the state after the first ``whole`` [G] int64 chunks, the next anchor.
    """
    inputs = (query, key, value, log_decay, beta)
    return reference.gated_delta_on_grid(*inputs, anchor, mask, whole, chunk)


def two_sweeps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    mask: Tensor | None = None,
    chunk: int = 64,
) -> Tensor:
    """Mix a block in both directions; returns o [G, T, Hv, dv]. Arguments as ``gated_delta``'s."""
    return reference.two_sweeps(query, key, value, log_decay, beta, state, mask, chunk)


def commit_rows(
    inputs: DeltaRows, segments: Segments, snapshots: Tensor | None, out: Tensor
) -> None:
    """Mix the rows of ``segments`` causally and write their slots' states and tails in place.

    Convolution and gates included. out [R, Hv, dv], float32 or the rows' dtype; rows of no segment
    stay as they are. snapshots [G] int32: lines that get a copy of state and tail, -1 for none.
    Segments have slots of their own; a second one of a slot comes with the next call.
    """
    if choose("gated_delta", inputs.rows.device) is TRITON:
        from blockdiff_kernels.gated_delta import triton

        return triton.commit(inputs, segments, snapshots, out)
    return rows_reference.commit_rows(inputs, segments, snapshots, out)


def preview_rows(inputs: DeltaRows, segments: Segments, out: Tensor) -> None:
    """``commit_rows`` that writes ``out`` and nothing else."""
    if choose("gated_delta", inputs.rows.device) is TRITON:
        from blockdiff_kernels.gated_delta import triton

        return triton.preview(inputs, segments, out)
    return rows_reference.preview_rows(inputs, segments, out)


def two_sweep_rows(
    inputs: DeltaRows, right_weight: Tensor, segments: Segments, out: Tensor
) -> None:
    """``preview_rows`` in both directions; right_weight [C, r] as in ``conv.preview_conv``.

    Kernels take blocks of up to 32 rows; longer ones are computed by the definition.
    """
    if choose("gated_delta", inputs.rows.device) is TRITON:
        from blockdiff_kernels.gated_delta import tiles, triton

        if segments.longest <= tiles.SWEEP_ROWS:
            return triton.two_sweeps(inputs, right_weight, segments, out)
    return rows_reference.two_sweep_rows(inputs, right_weight, segments, out)
