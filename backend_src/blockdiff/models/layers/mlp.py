"""Feed-forward layers for every row by itself: one dense MLP, or routed and shared experts.

Knows the stacked layout of experts; knows nothing of norms around it or of checkpoints.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff.config import RouterConfig
from blockdiff_kernels.moe import experts, route, route_groups


@dataclass
class DenseMlp:
    """silu(gate x) * up x, then down."""

    gate_up: Tensor  # [2I, H], gate rows first
    down: Tensor  # [H, I]

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, H] -> [R, H]."""
        gate, up = functional.linear(x, self.gate_up).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * up, self.down)


@dataclass
class RoutedExperts:
    """Top-k of E routed experts, and a shared expert that every row uses with weight 1."""

    config: RouterConfig
    router: Tensor  # [E, H], its dtype is the router's
    bias: Tensor | None  # [E] float32, for the choice only
    gate_up: Tensor  # [E + N, 2I, H], the shared expert follows as N experts of width I
    down: Tensor  # [E + N, I, H]

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, H] -> [R, H]."""
        weights, ids = self._route(functional.linear(x.to(self.router.dtype), self.router))
        total = self.down.shape[0]
        if total > self.config.num_experts:
            always = torch.arange(self.config.num_experts, total, device=x.device)
            ids = torch.cat((ids, always.expand(x.shape[0], -1)), dim=1)
            weights = functional.pad(weights, (0, len(always)), value=1.0)
        return experts(x, weights, ids, self.gate_up, self.down)

    def _route(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        own = self.config
        if not own.is_sigmoid:
            return route(logits, own.num_experts_per_tok, own.is_normalised)
        bias = logits.new_zeros(own.num_experts) if self.bias is None else self.bias
        sizes = (own.num_experts_per_tok, own.groups, own.kept_groups)
        return route_groups(logits, bias, *sizes, own.scale)
