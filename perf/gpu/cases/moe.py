"""Routing, and the experts of a layer with the shared one among them, in bfloat16 and quantised."""

from collections.abc import Sequence

import torch
from torch import Tensor

from blockdiff_kernels.moe.cost import experts_cost, routing_cost
from blockdiff_kernels.moe.fused import apply_experts, choose_experts
from blockdiff_kernels.moe.plan import RouterPlan
from blockdiff_kernels.moe.rules import Softmax
from blockdiff_kernels.moe.stacks import ExpertWeights, WeightStack, stack_quantized
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.projection import Normed, Plain
from blockdiff_kernels.quantized_linear import pack_int4
from blockdiff_kernels.quantized_linear.quantize import quantize_fp8, quantize_int
from perf.gpu.case import Maker, OpCase, Work
from perf.gpu.sizes import Sizes

GROUP = 128
# bytes of a weight with its share of a scale
FORMATS = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5 + 4 / GROUP}


def cases(sizes: Sizes, rows: Sequence[int]) -> list[OpCase]:
    """The choice of experts, and what they do with each kind of weights."""
    found = [_route(sizes, count) for count in rows]
    return found + [_experts(sizes, count, kind) for kind in FORMATS for count in rows]


def _plan(sizes: Sizes, router: Tensor) -> RouterPlan:
    return RouterPlan(router, Softmax(sizes.chosen), experts=sizes.experts, shared=1)


def _router(maker: Maker, sizes: Sizes, dtype: torch.dtype | None = None) -> Tensor:
    shape = (sizes.experts + 1, sizes.hidden)
    return maker.normal(*shape, scale=sizes.hidden**-0.5, dtype=dtype)


def _route(sizes: Sizes, rows: int) -> OpCase:
    def make(maker: Maker) -> Work:
        plan = _plan(sizes, _router(maker, sizes))
        weight = maker.normal(sizes.hidden, scale=0.1)
        source = Normed(maker.normal(rows, sizes.hidden), weight, 1e-6, NormKind.ZERO_CENTRED)
        # rounding exchanges experts of nearly equal weights, so that weights agree in their order
        return Work(
            lambda: choose_experts(source, plan),
            lambda routing: [routing.rows, routing.weights.sort().values],
        )

    total = routing_cost(rows, sizes.hidden, sizes.experts + 1, sizes.chosen + 1)
    return OpCase("moe", "route", rows, make, total)


def _experts(sizes: Sizes, rows: int, kind: str) -> OpCase:
    hidden, inner = sizes.hidden, sizes.inner

    def make(maker: Maker) -> Work:
        # chosen in float32 or better, so that all have the same experts
        plan = _plan(sizes, _router(maker, sizes, maker.state_dtype))
        drawn = Plain(maker.normal(rows, hidden, dtype=maker.state_dtype))
        routing = choose_experts(drawn, plan)
        routing = routing._replace(rows=maker.normal(rows, hidden))
        residual = maker.normal(rows, hidden)
        weights = ExpertWeights(
            _stack(maker, plan.stacked, (2 * inner, hidden), kind),
            _stack(maker, plan.stacked, (hidden, inner), kind),
        )
        return Work(lambda: [apply_experts(routing, weights, residual)])

    count = sizes.experts
    distinct = count * (1 - (1 - sizes.chosen / count) ** rows) + 1
    one = 3 * hidden * inner * FORMATS[kind]
    total = experts_cost(rows, distinct, sizes.chosen + 1, hidden, inner, one)
    return OpCase("moe", "experts", rows, make, total, weights=kind)


def _stack(maker: Maker, count: int, shape: tuple[int, int], kind: str) -> WeightStack:
    scale = shape[1] ** -0.5
    if kind == "bf16":
        return WeightStack(maker.normal(count, *shape, scale=scale))
    found = stack_quantized(
        [_quantised(maker.normal(*shape, scale=scale), kind) for _ in range(count)], shape
    )
    assert found is not None
    return found


def _quantised(weight: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    own = weight.to(torch.bfloat16).float()
    if kind == "fp8":
        return quantize_fp8(own)
    values, scale = quantize_int(own, 4, min(GROUP, own.shape[1]))
    return pack_int4(values), scale
