"""Routers: from a layer's router logits to each row's experts and their weights.

One class per rule, chosen once when a layer is built. Knows nothing of experts' weights.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from blockdiff.config import MAX_POOL, CoresetConfig, RouterConfig
from blockdiff_kernels.coreset import (
    RowBlocks,
    pool_by_mass,
    pool_by_maximum,
    route_block,
    route_inside,
)
from blockdiff_kernels.moe import route, route_groups
from blockdiff_kernels.moe.rules import MassPool, MaximumPool, Rule, Sigmoid, Softmax
from blockdiff_kernels.pointwise import FAST, Pointwise


class Router(Protocol):
    """Chooses experts for every row of a round."""

    def __call__(self, logits: Tensor, blocks: RowBlocks | None) -> tuple[Tensor, Tensor]:
        """Weights [R, k] float32 and expert ids [R, k] int64 from logits [R, E].

        ``blocks`` are those of the round's layout; rules that look at single rows need none.
        """
        ...

    def rule(self) -> Rule:
        """The same as data, for kernels."""
        ...


@dataclass
class SoftmaxRouter:
    """The k best of all experts by softmax, their weights divided by their sum or not."""

    top_k: int
    is_normalised: bool

    def __call__(self, logits: Tensor, blocks: RowBlocks | None) -> tuple[Tensor, Tensor]:
        """See ``Router``."""
        return route(logits, self.top_k, self.is_normalised)

    def rule(self) -> Rule:
        """See ``Router``."""
        return Softmax(self.top_k, self.is_normalised)


@dataclass
class GroupRouter:
    """LLaDA2.0 and 2.1: sigmoid scores, the k best inside the best groups."""

    config: RouterConfig
    bias: Tensor  # [E] float32
    pointwise: Pointwise = FAST

    def __call__(self, logits: Tensor, blocks: RowBlocks | None) -> tuple[Tensor, Tensor]:
        """See ``Router``."""
        own = self.config
        sizes = (own.num_experts_per_tok, own.groups, own.kept_groups)
        return route_groups(logits, self.bias, *sizes, own.scale, self.pointwise)

    def rule(self) -> Rule:
        """See ``Router``."""
        own = self.config
        sizes = (own.groups, own.kept_groups)
        return Sigmoid(own.num_experts_per_tok, self.bias, own.scale, *sizes)


@dataclass
class BlockRouter:
    """LLaDA2.2: sigmoid scores, the k best inside the pool of the row's block."""

    config: RouterConfig
    bias: Tensor  # [E] float32
    pointwise: Pointwise = FAST

    def __call__(self, logits: Tensor, blocks: RowBlocks | None) -> tuple[Tensor, Tensor]:
        """See ``Router``."""
        assert blocks is not None, "the model's layout numbers blocks when its router needs them"
        own = self.config
        sizes = (own.capacity, own.num_experts_per_tok)
        return route_block(logits, self.bias, blocks, *sizes, own.scale, self.pointwise)

    def rule(self) -> Rule:
        """See ``Router``."""
        own = self.config
        pool = MaximumPool(own.capacity)
        return Sigmoid(own.num_experts_per_tok, self.bias, own.scale, pool=pool)


@dataclass
class CoresetRouter:
    """A softmax router whose rows choose inside their block's coreset of experts."""

    config: CoresetConfig
    top_k: int

    def __call__(self, logits: Tensor, blocks: RowBlocks | None) -> tuple[Tensor, Tensor]:
        """See ``Router``."""
        assert blocks is not None, "the model's layout numbers blocks when its router needs them"
        own = self.config
        shares = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        if own.rule == MAX_POOL:
            allowed = pool_by_maximum(shares, blocks, own.capacity)
        else:
            allowed = pool_by_mass(shares, blocks, self.top_k, own.top_p)
        return route_inside(logits, allowed, self.top_k)

    def rule(self) -> Rule:
        """See ``Router``."""
        own = self.config
        pool = MaximumPool(own.capacity) if own.rule == MAX_POOL else MassPool(own.top_p)
        return Softmax(self.top_k, pool=pool)


def make_router(config: RouterConfig, bias: Tensor, pointwise: Pointwise) -> Router:
    """The router of an attention-only family; ``bias`` [E] is for a sigmoid router's choice."""
    if not config.is_sigmoid:
        return SoftmaxRouter(config.num_experts_per_tok, config.is_normalised)
    rule = BlockRouter if config.capacity else GroupRouter
    return rule(config, bias, pointwise)
