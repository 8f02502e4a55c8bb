"""Preview mixer "C": softmax over the block's rows plus one history slot read from the state.

h_i  = S0^T (l2norm(q_i) / sqrt(dk))
l_ij = a (l2norm(q_i) . l2norm(k_j)) for all j of the block;  l_i0 = b + c ||h_i||
p_i  = softmax(l_i0, l_i1 .. l_iT);  o_i = p_i0 h_i + sum_j p_ij v_j
"""

from torch import Tensor

from blockdiff_kernels.block_softmax import reference
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.implementation import TRITON, choose
from blockdiff_kernels.segments import Segments


def block_softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    logit_scale: Tensor,
    history_bias: Tensor,
    history_c: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """Mix a block without touching ``state``; returns o [G, T, Hv, dv] in the state's dtype.

    query, key [G, T, Hk, dk] before normalisation; value [G, T, Hv, dv]; state [G, Hv, dk, dv]
    float32; logit_scale a, history_bias b, history_c c [Hv].
    mask [G, T] bool: False rows are padding and are attended by nobody (None: none).
    """
    return reference.block_softmax(
        query, key, value, state, logit_scale, history_bias, history_c, mask
    )


def block_softmax_rows(
    inputs: DeltaRows,
    right_weight: Tensor,
    vectors: tuple[Tensor, Tensor, Tensor],
    segments: Segments,
    out: Tensor,
) -> None:
    """Mix the blocks ``segments`` of flat rows into ``out`` [R, Hv, dv], convolution included.

    right_weight [C, r] as in ``conv.preview_conv``; vectors: a, b and c [Hv]. out is float32 or has
    the rows' dtype; rows of no segment stay as they are. Nothing else is written.
    """
    if choose("block_softmax", inputs.rows.device) is TRITON:
        from blockdiff_kernels.block_softmax import triton

        return triton.block_softmax(inputs, right_weight, vectors, segments, out)
    return reference.block_softmax_rows(inputs, right_weight, vectors, segments, out)
