"""Experts that the rows of one block share: a pool chosen per block, a top k inside it per row.

pool_by_maximum: g_e = max over the block's rows of score_e; the ``capacity`` best experts
pool_by_mass: S_e = sum over the rows of score_e where e is in the row's own top k; the fewest
    experts, from the largest S on, that hold ``share`` of the whole S, but at least k
route_block: s = sigmoid(logits); pool_by_maximum, then top k inside the pool, both by s + bias;
    w = scale * s / (sum of the chosen s + 1e-20), not divided for k = 1
Equal scores go to the lower expert id. Only the block's own rows decide, whatever else is there.
"""

from torch import Tensor

from blockdiff_kernels.coreset import reference
from blockdiff_kernels.coreset.reference import RowBlocks
from blockdiff_kernels.pointwise import FAST, Pointwise

__all__ = ["RowBlocks", "pool_by_mass", "pool_by_maximum", "route_block", "route_inside"]


def pool_by_maximum(scores: Tensor, blocks: RowBlocks, capacity: int) -> Tensor:
    """Which experts each row may use, [R, E] bool, from scores [R, E]; LLaDA2.2's rule.

    Rows outside every block may use all. A ``capacity`` of E or more allows all experts.
    """
    return reference.pool_by_maximum(scores, blocks, capacity)


def pool_by_mass(scores: Tensor, blocks: RowBlocks, top_k: int, share: float) -> Tensor:
    """Which experts each row may use, [R, E] bool, from probabilities [R, E]; dMoE's rule.

    ``share`` in (0, 1]; at 1 every expert in some row's own top k stays.
    """
    return reference.pool_by_mass(scores, blocks, top_k, share)


def route_inside(logits: Tensor, allowed: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Weights [R, k] float32 (sum 1) and expert ids [R, k] int64 of the best allowed logits.

    logits [R, E]; allowed [R, E] bool, at least ``top_k`` True per row.
    """
    return reference.route_inside(logits, allowed, top_k)


def route_block(
    logits: Tensor,
    bias: Tensor,
    blocks: RowBlocks,
    capacity: int,
    top_k: int,
    scale: float,
    pointwise: Pointwise = FAST,
) -> tuple[Tensor, Tensor]:
    """Weights [R, k] float32 and expert ids [R, k] int64 of LLaDA2.2's block routing.

    logits [R, E]; bias [E], for the choice only; ``capacity`` at least ``top_k``.
    """
    return reference.route_block(logits, bias, blocks, capacity, top_k, scale, pointwise)
