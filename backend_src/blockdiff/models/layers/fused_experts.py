"""A router and its experts as two calls of kernels, with the norm before and the sum after them.

Takes the place of a layer's own router and experts where kernels are chosen for ``moe`` and can
read the weights. Knows nothing of routing rules or of checkpoints.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from blockdiff.models.expert_hits import LayerHits
from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.layout import RoundLayout
from blockdiff.models.layers.linear import DenseLinear, Linear
from blockdiff.models.layers.packed import PackedLinear
from blockdiff.models.numerics import Numerics
from blockdiff_kernels.implementation import TRITON, choose
from blockdiff_kernels.moe.fused import apply_experts, choose_experts
from blockdiff_kernels.moe.plan import RouterPlan
from blockdiff_kernels.moe.rules import Rule, has_kernel
from blockdiff_kernels.moe.stacks import ExpertWeights
from blockdiff_kernels.projection import Normed, Plain, Source


@dataclass(frozen=True)
class FusedExperts:
    """Feeds every row by itself; of several ranks, this one's summand."""

    plan: RouterPlan
    weights: ExpertWeights

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
        rows = source if isinstance(source, Plain | Normed) else Plain(source.rows())
        counts = None if hits is None else hits.counts
        routing = choose_experts(rows, self.plan, layout.blocks, layout.row_count, counts)
        return apply_experts(routing, self.weights, residual)


def plan_of(router: Linear, rule: Rule, num_experts: int) -> RouterPlan | None:
    """Of a router H -> E, or E + 1 with the gate of the shared experts; None if it is no matrix."""
    if not isinstance(router, DenseLinear | PackedLinear):
        return None
    return RouterPlan(router.weight, rule, experts=num_experts)


def fuse(plan: RouterPlan | None, experts: Experts, numerics: Numerics) -> FusedExperts | None:
    """``plan`` with ``experts``, which follow it in whom they hold; None to compute another way.

    That is where kernels are not chosen, or cannot apply the rule or read the weights.
    """
    if plan is None or numerics.is_deterministic or not has_kernel(plan.rule):
        return None
    if choose("moe", plan.weight.device) is not TRITON:
        return None
    weights = experts.for_kernels()
    if weights is None:
        return None
    first, stop = span = experts.routed_here or (0, plan.experts)
    return FusedExperts(replace(plan, shared=weights.count - (stop - first), span=span), weights)
