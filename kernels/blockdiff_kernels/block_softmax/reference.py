"""Plain torch definition of the preview mixer "C". Knows nothing of layers or caches."""

import torch
from torch import Tensor

from blockdiff_kernels.gated_delta.reference import l2_normalise
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.gated_delta.rows_reference import preview_with
from blockdiff_kernels.segments import Segments


def block_probabilities(
    query: Tensor,
    key: Tensor,
    state: Tensor,
    logit_scale: Tensor,
    history_bias: Tensor,
    history_c: Tensor,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(p [G, Hv, T, 1 + T] with the history slot first, h [G, Hv, T, dv]); see the package."""
    compute, key_heads = state.dtype, query.shape[2]
    grouped = (key_heads, state.shape[1] // key_heads)
    both = l2_normalise(torch.cat((query, key), dim=2).to(compute)).transpose(1, 2)
    # [G, Hk, 1, T, dk] against value heads grouped as [G, Hk, repeats, ...]
    # products would copy what is not contiguous, depending on how many segments there are
    q, k = (half.contiguous() for half in both.unsqueeze(2).tensor_split(2, dim=1))
    history = (q @ state.view(-1, *grouped, *state.shape[2:])) * query.shape[-1] ** -0.5
    scale, bias, slope = (
        x.to(compute).view(*grouped, 1, 1) for x in (logit_scale, history_bias, history_c)
    )
    block_logits = (q @ k.transpose(-1, -2)) * scale
    if mask is not None:
        block_logits = block_logits.masked_fill(~mask[:, None, None, None, :], float("-inf"))
    length = torch.linalg.vector_norm(history, dim=-1, keepdim=True)
    logits = torch.cat((torch.addcmul(bias, slope, length), block_logits), dim=-1)
    return logits.softmax(-1).flatten(1, 2), history.flatten(1, 2)


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
    """See the package docstring."""
    if mask is not None:
        padding = ~mask.unsqueeze(-1).unsqueeze(-1)
        query, key, value = (x.masked_fill(padding, 0) for x in (query, key, value))
    p, history = block_probabilities(query, key, state, logit_scale, history_bias, history_c, mask)
    values = value.to(state.dtype).transpose(1, 2).contiguous()
    mixed = torch.addcmul(p[..., 1:] @ values, p[..., :1], history)
    return mixed.transpose(1, 2)


def block_softmax_rows(
    inputs: DeltaRows,
    right_weight: Tensor,
    vectors: tuple[Tensor, Tensor, Tensor],
    segments: Segments,
    out: Tensor,
) -> None:
    """See the package."""
    preview_with(inputs, right_weight, segments, out, lambda heads, _, state, mask: block_softmax(
        *heads, state, *vectors, mask
    ))  # fmt: skip
