"""Plain torch definitions of expert pools per block. Knows nothing of layers or of experts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from blockdiff_kernels.pointwise import FAST, Pointwise

# Probabilities are summed as integers of this unit: exact, so that neither the order of the rows
# nor what else is in the round can move an expert over the cut.
_UNIT = 2.0**-40


@dataclass(frozen=True)
class RowBlocks:
    """Which block each row of a round belongs to."""

    numbers: Tensor  # [R] int64, from 0 on; -1: in no block, may use every expert
    count: int  # blocks in the round


def pool_by_maximum(scores: Tensor, blocks: RowBlocks, capacity: int) -> Tensor:
    """See the package docstring."""
    # line 0 collects the rows outside
    place = (blocks.numbers + 1).unsqueeze(1).expand_as(scores)
    best = scores.new_full((blocks.count + 1, scores.shape[1]), float("-inf"))
    best = best.scatter_reduce(0, place, scores, "amax")
    return _spread(_rank(best) < capacity, blocks)


def pool_by_mass(scores: Tensor, blocks: RowBlocks, top_k: int, share: float) -> Tensor:
    """See the package docstring."""
    # an expert that a row would use counts, however small its probability
    units = (scores.double() / _UNIT).round().clamp_min(1).to(torch.int64)
    units = torch.where(_rank(scores) < top_k, units, 0)
    mass = units.new_zeros(blocks.count + 1, scores.shape[1])
    mass = mass.index_add(0, blocks.numbers + 1, units)
    rank = _rank(mass)
    falling = mass.sort(dim=-1, descending=True, stable=True).values
    before = (falling.cumsum(-1) - falling).gather(1, rank)
    wanted = mass.sum(-1, keepdim=True).double() * share
    return _spread((before.double() < wanted) & (mass > 0) | (rank < top_k), blocks)


def route_inside(logits: Tensor, allowed: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """See the package docstring. Softmax of the chosen logits is the renormalised softmax."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    ids = best_allowed(logits, allowed, top_k)
    return logits.gather(1, ids).softmax(-1), ids


def route_block(
    logits: Tensor,
    bias: Tensor,
    blocks: RowBlocks,
    capacity: int,
    top_k: int,
    scale: float,
    pointwise: Pointwise = FAST,
) -> tuple[Tensor, Tensor]:
    """See the package docstring."""
    scores = pointwise.sigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32)))
    choice = scores + bias.to(scores.dtype)
    ids = best_allowed(choice, pool_by_maximum(choice, blocks, capacity), top_k)
    weights = scores.gather(1, ids)
    if top_k > 1:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * scale, ids


def best_allowed(scores: Tensor, allowed: Tensor, top_k: int) -> Tensor:
    """Ids [R, k] int64 of the highest allowed scores [R, E], falling, lower ids first in ties."""
    inside = scores.masked_fill(~allowed, float("-inf"))
    return inside.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]


def _rank(scores: Tensor) -> Tensor:
    """[N, E] int64: how many experts of the line come before each, lower ids first in ties."""
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def _spread(pools: Tensor, blocks: RowBlocks) -> Tensor:
    """Pools [N + 1, E] to rows [R, E]; line 0, of the rows outside, allows everything."""
    pools[0].fill_(True)
    return pools.index_select(0, blocks.numbers + 1)
