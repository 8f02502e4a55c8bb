"""Feed-forward layers for every row by itself: one dense MLP, or routed and shared experts.

Knows the order of the stack of experts; knows nothing of norms around it or of checkpoints.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff.models.expert_hits import LayerHits
from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.fused_experts import FusedExperts, fuse, plan_of
from blockdiff.models.layers.layout import RoundLayout
from blockdiff.models.layers.linear import DenseLinear, Linear
from blockdiff.models.layers.routers import Router
from blockdiff.models.numerics import Numerics
from blockdiff_kernels.pointwise import FAST, Pointwise
from blockdiff_kernels.projection import GatedPair, Source


@dataclass
class DenseMlp:
    """silu(gate x) * up x, then down."""

    gate_up: Linear  # H -> 2I, gate outputs first
    down: Linear  # I -> H
    pointwise: Pointwise = FAST

    def __call__(
        self,
        source: Source,
        layout: RoundLayout,
        hits: LayerHits | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Rows [R, H] -> [R, H], added to ``residual`` if given; there are no hits to count."""
        inner = GatedPair(self.gate_up.of(source), pointwise=self.pointwise)
        return self.down.of(inner, residual)


@dataclass
class RoutedExperts:
    """Top-k of E routed experts, and a shared expert that every row uses with weight 1."""

    choose: Router
    router: Linear  # H -> E
    router_dtype: torch.dtype  # what the router computes in
    experts: Experts  # E routed ones, the shared expert follows as N experts of their width

    def __call__(
        self,
        source: Source,
        layout: RoundLayout,
        hits: LayerHits | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Rows [R, H] -> [R, H], added to ``residual`` if given.

        The routed experts that rows choose are added to ``hits``.
        """
        x = source.rows()
        logits = self.router(x.to(self.router_dtype))
        weights, ids = self.choose(logits, layout.blocks)
        if hits is not None:
            hits.add(ids)
        routed, total = self.router.out_features, self.experts.count
        if total > routed:
            always = torch.arange(routed, total, device=x.device)
            ids = torch.cat((ids, always.expand(x.shape[0], -1)), dim=1)
            weights = functional.pad(weights, (0, len(always)), value=1.0)
        y = self.experts(x, weights, ids)
        return y if residual is None else residual + y


FeedForward = DenseMlp | RoutedExperts | FusedExperts


def make_routed_experts(
    choose: Router, gate: Tensor, experts: Experts, numerics: Numerics
) -> RoutedExperts | FusedExperts:
    """The layer as it is computed here; ``gate`` [E, H] is the router, which sets its dtype."""
    router = DenseLinear(gate)
    fused = fuse(plan_of(router, choose.rule(), len(gate)), experts, numerics)
    if fused is not None:
        return fused
    return RoutedExperts(choose, numerics.linear(router), gate.dtype, experts)
