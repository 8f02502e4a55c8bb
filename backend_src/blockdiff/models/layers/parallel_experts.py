"""A dense MLP and routed experts side by side, each between norms of its own.

Knows nothing of attention, of caches or of checkpoints.
"""

from dataclasses import dataclass

from torch import Tensor

from blockdiff.models.expert_hits import LayerHits
from blockdiff.models.group import Group
from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.linear import Linear
from blockdiff_kernels.moe import route_scaled
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
class ParallelFeedForward:
    """Norm weights [H] are named by what they precede or follow."""

    dense: GeluMlp
    router: ScaledRouter
    experts: Experts  # with the activation GELU
    before_dense: Tensor
    after_dense: Tensor
    before_experts: Tensor
    after_experts: Tensor
    after_sum: Tensor
    eps: float
    group: Group  # its ranks' summands are added up before the norms that follow

    def __call__(self, x: Tensor, factors: Factors, hits: LayerHits | None = None) -> Tensor:
        """The residual stream x [R, H] -> [R, H], all of it times ``factors``.

        Choices are counted in ``hits``.
        """
        dense = self.group.all_reduce(self.dense(Normed(x, self.before_dense, self.eps, PLAIN)))
        # the router reads the residual stream itself
        weights, ids = self.router(x)
        if hits is not None:
            hits.add(ids)
        rows = plain_rms_norm(x, self.before_experts, self.eps)
        routed = self.group.all_reduce(self.experts(rows, weights, ids))
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
