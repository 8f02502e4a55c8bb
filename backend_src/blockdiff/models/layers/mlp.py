"""Feed-forward layers for every row by itself: one dense MLP, or routed and shared experts.

Knows the stacked layout of experts; knows nothing of norms around it or of checkpoints.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff.models.layers.layout import RoundLayout
from blockdiff.models.layers.routers import Router
from blockdiff_kernels.moe import experts


@dataclass
class DenseMlp:
    """silu(gate x) * up x, then down."""

    gate_up: Tensor  # [2I, H], gate rows first
    down: Tensor  # [H, I]

    def __call__(self, x: Tensor, layout: RoundLayout) -> Tensor:
        """x [R, H] -> [R, H]."""
        gate, up = functional.linear(x, self.gate_up).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * up, self.down)


@dataclass
class RoutedExperts:
    """Top-k of E routed experts, and a shared expert that every row uses with weight 1."""

    choose: Router
    router: Tensor  # [E, H], its dtype is the router's
    gate_up: Tensor  # [E + N, 2I, H], the shared expert follows as N experts of width I
    down: Tensor  # [E + N, I, H]

    def __call__(self, x: Tensor, layout: RoundLayout) -> Tensor:
        """x [R, H] -> [R, H]."""
        logits = functional.linear(x.to(self.router.dtype), self.router)
        weights, ids = self.choose(logits, layout.blocks)
        routed, total = self.router.shape[0], self.down.shape[0]
        if total > routed:
            always = torch.arange(routed, total, device=x.device)
            ids = torch.cat((ids, always.expand(x.shape[0], -1)), dim=1)
            weights = functional.pad(weights, (0, len(always)), value=1.0)
        return experts(x, weights, ids, self.gate_up, self.down)
