"""Sparse experts with a gated shared expert, fused at load into one stack of experts.

Knows the stacked layout; knows nothing of norms around it or of checkpoints.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff.models.layers.layout import RoundLayout
from blockdiff.models.layers.routers import Router
from blockdiff_kernels.moe import experts, moe, with_shared


@dataclass
class MoeWeights:
    """One layer's tensors. The shared expert follows the routed ones as N experts of width I."""

    router: Tensor  # [E + 1, H], last row: the shared expert's gate
    gate_up: Tensor  # [E + N, 2I, H], gate rows first
    down: Tensor  # [E + N, I, H]


class SparseMoe:
    """Top-k of E routed experts plus the shared expert, for every row by itself."""

    def __init__(self, weights: MoeWeights, num_experts: int, top_k: int) -> None:
        self.weights = weights
        self.num_experts = num_experts
        self.top_k = top_k

    def __call__(self, x: Tensor, layout: RoundLayout) -> Tensor:
        """x [R, H] -> [R, H]."""
        own = self.weights
        return moe(x, own.router, own.gate_up, own.down, self.num_experts, self.top_k)


class CoresetMoe(SparseMoe):
    """The same experts, chosen by a router that looks at the rows of whole blocks."""

    def __init__(self, weights: MoeWeights, num_experts: int, top_k: int, choose: Router) -> None:
        super().__init__(weights, num_experts, top_k)
        self.choose = choose

    def __call__(self, x: Tensor, layout: RoundLayout) -> Tensor:
        """x [R, H] -> [R, H]."""
        own, count = self.weights, self.num_experts
        routing, gate = (x @ own.router.t()).split_with_sizes((count, 1), dim=1)
        weights, ids = self.choose(routing, layout.blocks)
        weights, ids = with_shared(weights, ids, gate, count, own.down.shape[0])
        return experts(x, weights, ids, own.gate_up, own.down)


def shared_as_experts(gate: Tensor, up: Tensor, down: Tensor, inner: int) -> tuple[Tensor, Tensor]:
    """Cut a shared expert (gate, up [Is, H], down [H, Is]) into experts of width ``inner``.

    Returns gate_up [N, 2 inner, H] and down [N, inner, H]; the last slice is filled with zero
    rows, whose silu(0) * 0 adds nothing.
    """
    short = -gate.shape[0] % inner
    gate, up, down = (
        functional.pad(x, (0, 0, 0, short)).reshape(-1, inner, x.shape[1])
        for x in (gate, up, down.t())
    )
    return torch.cat((gate, up), dim=1), down
