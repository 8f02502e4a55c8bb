"""Routing of rows, and experts in bfloat16 and quantised, the shared one among them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from blockdiff.planning.speed.routing import expected_distinct
from blockdiff_kernels.implementation import using
from blockdiff_kernels.moe.cost import experts_cost, routing_cost
from blockdiff_kernels.moe.fused import apply_experts, choose_experts
from blockdiff_kernels.moe.plan import RouterPlan, Routing
from blockdiff_kernels.moe.rules import Softmax
from blockdiff_kernels.moe.stacks import ExpertWeights, WeightStack, dense_weights
from blockdiff_kernels.projection.sources import Plain
from perf.gpu.case import Maker, OpCase, Results, Work
from perf.gpu.sizes import Sizes

GROUP = 128
# bits of a weight
FORMATS = {"bf16": 16, "fp8": 8, "int4": 4}


def cases(sizes: Sizes, rows: Sequence[int]) -> list[OpCase]:
    """The router of each row, and what its experts do."""
    chosen, outputs = sizes.chosen, sizes.experts + 1
    found = []
    for count in rows:
        total = routing_cost(count, sizes.hidden, outputs, chosen)
        found.append(OpCase("moe", "routing", count, _route(count, sizes), total))
    for kind in FORMATS:
        for count in rows:
            # the shared expert is one that every row uses
            distinct = expected_distinct(sizes.experts, chosen, count) + 1
            own = _expert_bytes(sizes, kind)
            total = experts_cost(count, distinct, chosen + 1, sizes.hidden, sizes.inner, own)
            make = _experts(count, sizes, kind)
            found.append(OpCase("moe", "experts", count, make, total, weights=kind))
    return found


def _expert_bytes(sizes: Sizes, kind: str) -> float:
    """Of one expert, scales included."""
    found = 0.0
    for outputs, inputs in ((2 * sizes.inner, sizes.hidden), (sizes.hidden, sizes.inner)):
        scales = 0 if kind == "bf16" else outputs * _groups(inputs, kind)
        found += outputs * inputs * FORMATS[kind] / 8 + 4 * scales
    return found


def _groups(inputs: int, kind: str) -> int:
    """Scales of an output."""
    return max(inputs // GROUP, 1) if kind == "int4" else 1


def _plan(maker: Maker, sizes: Sizes) -> RouterPlan:
    router = maker.normal(sizes.experts + 1, sizes.hidden, scale=sizes.hidden**-0.5)
    return RouterPlan(router, Softmax(sizes.chosen), experts=sizes.experts, shared=1)


def _route(rows: int, sizes: Sizes) -> Callable[[Maker], Work]:
    def make(maker: Maker) -> Work:
        x, plan = maker.normal(rows, sizes.hidden), _plan(maker, sizes)

        def look(routing: Routing) -> Results:
            # of experts with nearly equal scores either may be chosen: their scores are compared
            scores = (x.double() @ plan.weight.double().t())[:, : sizes.experts].softmax(1)
            ids = routing.ids[:, : sizes.chosen].long()
            chosen = scores.gather(1, ids).sort(dim=1).values
            return [chosen, routing.weights[:, : sizes.chosen].sort(dim=1).values]

        return Work(lambda: choose_experts(Plain(x), plan), look)

    return make


def _experts(rows: int, sizes: Sizes, kind: str) -> Callable[[Maker], Work]:
    def make(maker: Maker) -> Work:
        x, plan = maker.normal(rows, sizes.hidden), _plan(maker, sizes)
        narrow = RouterPlan(
            plan.weight.bfloat16(), plan.rule, experts=plan.experts, shared=plan.shared
        )
        # the same experts in every precision
        with using("triton"):
            routing = choose_experts(Plain(x.bfloat16()), narrow)
        own = routing._replace(rows=x, weights=routing.weights.to(maker.state_dtype))
        residual = maker.normal(rows, sizes.hidden)
        stack = _stack(maker, sizes, kind)
        return Work(lambda: [apply_experts(own, stack, residual)])

    return make


def _stack(maker: Maker, sizes: Sizes, kind: str) -> ExpertWeights:
    count, hidden, inner = sizes.experts + 1, sizes.hidden, sizes.inner
    if kind == "bf16":
        gate_up = maker.normal(count, 2 * inner, hidden, scale=hidden**-0.5)
        return dense_weights(gate_up, maker.normal(count, inner, hidden, scale=inner**-0.5))
    sides = ((2 * inner, hidden), (hidden, inner))
    first, second = (_quantised(maker, count, *side, kind) for side in sides)
    return ExpertWeights(first, second)


def _quantised(maker: Maker, count: int, outputs: int, inputs: int, kind: str) -> WeightStack:
    """Random numbers of the format; their scales make rows of about length 1."""
    if kind == "fp8":
        drawn: Tensor = maker.normal(count, outputs, inputs, dtype=torch.bfloat16)
        values, spread = drawn.to(torch.float8_e4m3fn), 1.0
    else:
        values = maker.numbers(count, outputs, inputs // 2, below=256, dtype=torch.uint8)
        spread = 4.6
    groups = _groups(inputs, kind)
    size = inputs**-0.5 / spread
    scale = maker.normal(count, outputs, groups, scale=0.1 * size, dtype=torch.float32) + size
    return WeightStack(values, scale)
