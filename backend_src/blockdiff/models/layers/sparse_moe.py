"""Sparse experts with a gated shared expert, fused at load into one stack of experts.

Knows the order of the stack; knows nothing of norms around it or of checkpoints.
"""

from dataclasses import dataclass

from torch import Tensor

from blockdiff.models.expert_hits import LayerHits
from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.fused_experts import FusedExperts, fuse, plan_of
from blockdiff.models.layers.layout import RoundLayout
from blockdiff.models.layers.linear import Linear
from blockdiff.models.layers.routers import Router, SoftmaxRouter
from blockdiff.models.numerics import Numerics
from blockdiff_kernels.moe import route, weigh_with_shared, with_shared
from blockdiff_kernels.projection import Source


@dataclass
class MoeWeights:
    """One layer's weights. The shared expert follows the routed ones as N experts of width I."""

    router: Linear  # H -> E + 1, last output: the shared expert's gate
    experts: Experts  # E + N of them


class SparseMoe:
    """Top-k of E routed experts plus the shared expert, for every row by itself."""

    def __init__(
        self, weights: MoeWeights, num_experts: int, top_k: int, numerics: Numerics
    ) -> None:
        self.weights = weights
        self.pointwise = numerics.pointwise
        self.num_experts = num_experts
        self.top_k = top_k

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
        y = self._mix(source.rows(), layout, hits)
        return y if residual is None else residual + y

    def _mix(self, x: Tensor, layout: RoundLayout, hits: LayerHits | None) -> Tensor:
        own = self.weights.experts
        routing, gate = self._score(x)
        if own.prefers_all(x.shape[0]):
            if hits is not None:
                hits.add(route(routing, self.top_k)[1])
            return own.weigh_all(x, weigh_with_shared(routing, gate, self.top_k, own.count))
        weights, ids = route(routing, self.top_k)
        if hits is not None:
            hits.add(ids)
        return own(x, *self._with_shared(weights, ids, gate))

    def _score(self, x: Tensor) -> tuple[Tensor, ...]:
        """Router logits [R, E] and the shared expert's gate [R, 1]."""
        return self.weights.router(x).split_with_sizes((self.num_experts, 1), dim=1)

    def _with_shared(self, weights: Tensor, ids: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        sizes = (self.num_experts, self.weights.experts.count)
        return with_shared(weights, ids, gate, *sizes, self.pointwise)


class CoresetMoe(SparseMoe):
    """The same experts, chosen by a router that looks at the rows of whole blocks."""

    def __init__(
        self,
        weights: MoeWeights,
        num_experts: int,
        top_k: int,
        numerics: Numerics,
        choose: Router,
    ) -> None:
        super().__init__(weights, num_experts, top_k, numerics)
        self.choose = choose

    def _mix(self, x: Tensor, layout: RoundLayout, hits: LayerHits | None) -> Tensor:
        own = self.weights.experts
        routing, gate = self._score(x)
        weights, ids = self.choose(routing, layout.blocks)
        if hits is not None:
            hits.add(ids)
        return own(x, *self._with_shared(weights, ids, gate))


def make_sparse_moe(
    weights: MoeWeights,
    num_experts: int,
    top_k: int,
    numerics: Numerics,
    choose: Router | None = None,
) -> SparseMoe | FusedExperts:
    """The layer as it is computed here; ``choose`` looks at whole blocks, None: at single rows."""
    rule = SoftmaxRouter(top_k, True).rule() if choose is None else choose.rule()
    fused = fuse(plan_of(weights.router, rule, num_experts), weights.experts, numerics)
    if fused is not None:
        return fused
    if choose is None:
        return SparseMoe(weights, num_experts, top_k, numerics)
    return CoresetMoe(weights, num_experts, top_k, numerics, choose)
