"""Sparse experts on a CPU: rows sorted by expert, packed products, a gather that adds up.

Knows nothing of layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff_kernels.moe.reference import gated
from blockdiff_kernels.packed import packed_linear


def packed_experts(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    gate_up: Sequence[Tensor],
    down: Sequence[Tensor],
    activation: str = "silu",
) -> Tensor:
    """See the package."""
    chosen = ids.shape[1]
    counts = torch.bincount(ids.flatten(), minlength=len(down))[: len(down)].tolist()
    order = ids.flatten().argsort(stable=True)
    present = order[: sum(counts)]
    if not len(present):
        return torch.zeros_like(x)
    rows = x.index_select(0, present // chosen)
    gate, up = _apply(rows, counts, gate_up).chunk(2, dim=-1)
    outputs = _apply(gated(gate, up, activation), counts, down)
    # where each chosen expert's output lies
    places = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
    if len(present) < len(order):
        # experts that are elsewhere come last, and add a row of zeros
        outputs = torch.cat((outputs, outputs.new_zeros(1, outputs.shape[1])))
        places = places.clamp_max(len(present))
    y: Tensor = functional.embedding_bag(
        places.view(-1, chosen), outputs, per_sample_weights=weights.to(x.dtype), mode="sum"
    )
    return y


def _apply(rows: Tensor, counts: Sequence[int], packed: Sequence[Tensor]) -> Tensor:
    """Each expert's product for its own rows, which lie one expert after the other."""
    parts = rows.split_with_sizes(counts)
    return torch.cat(
        [
            packed_linear(part, own)
            for part, own, count in zip(parts, packed, counts, strict=True)
            if count
        ]
    )
