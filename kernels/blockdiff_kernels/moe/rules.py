"""How rows choose experts, as data: which rule, and the numbers it needs.

Knows the rules' definitions; knows nothing of layers, norms or experts' weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from blockdiff_kernels import coreset
from blockdiff_kernels.coreset import RowBlocks
from blockdiff_kernels.moe import reference


@dataclass(frozen=True)
class MaximumPool:
    """The ``capacity`` experts that score highest in any row of a block."""

    capacity: int


@dataclass(frozen=True)
class MassPool:
    """The fewest experts that hold ``share`` of what a block's rows give to their own top k."""

    share: float


Pool = MaximumPool | MassPool


@dataclass(frozen=True, eq=False)
class Softmax:
    """The k best logits, inside the pool of the row's block if there is one.

    Weights are the softmax of the chosen or, if not ``is_normalised``, their share of all; each is
    then multiplied by the expert's own scale, if there are any.
    """

    top_k: int
    is_normalised: bool = True
    expert_scale: Tensor | None = None  # [E]
    pool: Pool | None = None

    def choose(self, logits: Tensor, blocks: RowBlocks | None) -> tuple[Tensor, Tensor]:
        """Weights [R, k] float32 and ids [R, k] int64 from logits [R, E]."""
        if self.pool is None:
            if self.expert_scale is not None:
                return reference.route_scaled(logits, self.expert_scale, self.top_k)
            return reference.route(logits, self.top_k, self.is_normalised)
        assert blocks is not None, "pools are those of blocks"
        shares = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        if isinstance(self.pool, MaximumPool):
            allowed = coreset.pool_by_maximum(shares, blocks, self.pool.capacity)
        else:
            allowed = coreset.pool_by_mass(shares, blocks, self.top_k, self.pool.share)
        return coreset.route_inside(logits, allowed, self.top_k)


@dataclass(frozen=True, eq=False)
class Sigmoid:
    """The k best by sigmoid + bias, inside the best groups or inside the pool of the block."""

    top_k: int
    bias: Tensor  # [E] float32, for the choice only
    scale: float = 1.0
    groups: int = 1
    kept_groups: int = 1
    pool: MaximumPool | None = None

    def choose(self, logits: Tensor, blocks: RowBlocks | None) -> tuple[Tensor, Tensor]:
        """Weights [R, k] float32 and ids [R, k] int64 from logits [R, E]."""
        if self.pool is None:
            groups = (self.groups, self.kept_groups)
            return reference.route_groups(logits, self.bias, self.top_k, *groups, self.scale)
        assert blocks is not None, "pools are those of blocks"
        capacity = self.pool.capacity
        return coreset.route_block(logits, self.bias, blocks, capacity, self.top_k, self.scale)


Rule = Softmax | Sigmoid


def has_kernel(rule: Rule) -> bool:
    """Whether the kernels can apply ``rule``: groups of experts are some power of two."""
    return isinstance(rule, Softmax) or rule.groups & (rule.groups - 1) == 0
