"""Sparse experts on a CPU: rows sorted by expert, a product each, a gather that adds up.

Knows nothing of layers.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff_kernels.int8_rows import Int8Weight, int8_product, quantize_rows
from blockdiff_kernels.moe.reference import gated
from blockdiff_kernels.packed import packed_linear

Own = TypeVar("Own")  # an expert's weight


def packed_experts(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    gate_up: Sequence[Tensor],
    down: Sequence[Tensor],
    activation: str = "silu",
) -> Tensor:
    """See the package."""

    def outputs(places: Tensor, counts: Sequence[int]) -> Tensor:
        rows = x.index_select(0, places)
        gate, up = _apply(packed_linear, rows, counts, gate_up).chunk(2, dim=-1)
        return _apply(packed_linear, gated(gate, up, activation), counts, down)

    return _by_expert(x, weights, ids, len(down), outputs)


def int8_experts(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    gate_up: Sequence[Int8Weight],
    down: Sequence[Int8Weight],
    activation: str = "silu",
) -> Tensor:
    """See the package."""

    def outputs(places: Tensor, counts: Sequence[int]) -> Tensor:
        rows = quantize_rows(x).select(places)
        both = rows.finish(_apply(int8_product, rows.codes, counts, gate_up), x)
        gate, up = both.chunk(2, dim=-1)
        inner = quantize_rows(gated(gate, up, activation))
        return inner.finish(_apply(int8_product, inner.codes, counts, down), x)

    return _by_expert(x, weights, ids, len(down), outputs)


def _by_expert(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    experts: int,
    outputs: Callable[[Tensor, Sequence[int]], Tensor],
) -> Tensor:
    """Weighted sums of the ``outputs`` [N, H] of rows by expert: their places, and each count."""
    counts: list[int] = torch.bincount(ids.flatten(), minlength=experts)[:experts].tolist()
    # those of experts elsewhere come last
    order = ids.flatten().argsort(stable=True)
    present = order[: sum(counts)]
    if not len(present):
        return torch.zeros_like(x)
    return _add_up(outputs(present // ids.shape[1], counts), order, weights.to(x.dtype))


def _add_up(outputs: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of each row's ``outputs`` [N, H], which lie as ``order`` says."""
    # where each chosen expert's output lies
    places = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
    present = len(outputs)
    if present < len(order):
        # experts that are elsewhere come last, and add a row of zeros
        outputs = torch.cat((outputs, outputs.new_zeros(1, outputs.shape[1])))
        places = places.clamp_max(present)
    y: Tensor = functional.embedding_bag(
        places.view(weights.shape), outputs, per_sample_weights=weights, mode="sum"
    )
    return y


def _apply(
    product: Callable[[Tensor, Own], Tensor],
    rows: Tensor,
    counts: Sequence[int],
    owns: Sequence[Own],
) -> Tensor:
    """Each expert's product for its own rows, which lie one expert after the other."""
    parts = rows.split_with_sizes(counts)
    return torch.cat(
        [product(part, own) for part, own, count in zip(parts, owns, counts, strict=True) if count]
    )
