"""A dense MLP and routed experts side by side, each between norms of its own.

Knows nothing of attention, of caches or of checkpoints.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from blockdiff.models.expert_hits import LayerHits
from blockdiff.models.group import Group
from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.fused_experts import FusedExperts, fuse, plan_of
from blockdiff.models.layers.layout import RoundLayout
from blockdiff.models.layers.linear import Linear
from blockdiff.models.numerics import Numerics
from blockdiff_kernels.moe import route_scaled
from blockdiff_kernels.moe.plan import RowNorm
from blockdiff_kernels.moe.rules import Softmax
from blockdiff_kernels.norm import plain_rms_norm
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.norm.sums import Factors, Parallel, add_parallel, norm_of_sum
from blockdiff_kernels.pointwise import FAST, Pointwise
from blockdiff_kernels.projection import GatedPair, Normed, Source

PLAIN = NormKind.PLAIN
GELU = "gelu_tanh"


@dataclass
class GeluMlp:
    """gelu(gate x) * up x, then down."""

    gate_up: Linear  # H -> 2I, gate outputs first
    down: Linear  # I -> H
    pointwise: Pointwise = FAST

    def __call__(self, source: Source) -> Tensor:
        """Rows [R, H] -> [R, H]."""
        return self.down.of(GatedPair(self.gate_up.of(source), GELU, self.pointwise))


@dataclass
class ScaledRouter:
    """Chooses experts from normed, scaled rows; each expert's weight has a factor of its own."""

    weight: Linear  # H -> E
    scale: Tensor  # [H]
    expert_scale: Tensor  # [E]
    top_k: int
    eps: float

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [R, H] -> weights [R, k] float32 and expert ids [R, k]."""
        rows = plain_rms_norm(x, None, self.eps) * self.scale * x.shape[1] ** -0.5
        return route_scaled(self.weight(rows), self.expert_scale, self.top_k)


@dataclass
class ScaledExperts:
    """Experts whose router reads the residual stream, and they themselves rows after a norm."""

    router: ScaledRouter
    experts: Experts

    def __call__(
        self,
        source: Normed,
        layout: RoundLayout,
        hits: LayerHits | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Rows [R, H] -> [R, H], added to ``residual`` if given; counts choices in ``hits``."""
        weights, ids = self.router(source.x)
        if hits is not None:
            hits.add(ids)
        y = self.experts(source.rows(), weights, ids)
        return y if residual is None else residual + y


def make_scaled_experts(
    router: ScaledRouter, experts: Experts, numerics: Numerics
) -> ScaledExperts | FusedExperts:
    """The layer as it is computed here."""
    rule = Softmax(router.top_k, expert_scale=router.expert_scale)
    plan = plan_of(router.weight, rule, router.weight.out_features)
    if plan is not None:
        norm = RowNorm(router.scale, router.eps, PLAIN)
        plan = replace(plan, norm=norm, logit_scale=router.weight.in_features**-0.5)
    return fuse(plan, experts, numerics) or ScaledExperts(router, experts)


@dataclass
class ParallelFeedForward:
    """Norm weights [H] are named by what they precede or follow."""

    dense: GeluMlp
    routed: ScaledExperts | FusedExperts  # with the activation GELU
    before_dense: Tensor
    after_dense: Tensor
    before_experts: Tensor
    after_experts: Tensor
    after_sum: Tensor
    eps: float
    group: Group  # its ranks' summands are added up before the norms that follow

    def __call__(
        self, x: Tensor, factors: Factors, layout: RoundLayout, hits: LayerHits | None = None
    ) -> Tensor:
        """The residual stream x [R, H] -> [R, H], all of it times ``factors``.

        Choices are counted in ``hits``.
        """
        dense = self.group.all_reduce(self.dense(Normed(x, self.before_dense, self.eps, PLAIN)))
        rows = Normed(x, self.before_experts, self.eps, PLAIN)
        routed = self.group.all_reduce(self.routed(rows, layout, hits))
        norms = (self.after_dense, self.after_experts, self.after_sum)
        return add_parallel(x, Parallel(dense, routed, *norms), factors, self.eps)


@dataclass
class SelfConditioning:
    """Adds what the previous denoising step expected to the embeddings of a canvas."""

    before: Tensor  # [H]
    mlp: GeluMlp
    eps: float
    group: Group

    def __call__(self, x: Tensor, signal: Tensor) -> Tensor:
        """x, signal [P, H] -> [P, H]; a signal of zeros adds nothing, the norm still applies."""
        added = self.group.all_reduce(self.mlp(Normed(signal, self.before, self.eps, PLAIN)))
        return norm_of_sum(x, added, self.eps)
