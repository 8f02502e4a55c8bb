"""Grouped products of experts against float64, in every number format. Run: pytest tests/kernels"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.implementation import using
from blockdiff_kernels.moe import tiles
from blockdiff_kernels.moe.fused import apply_experts, choose_experts, define_experts
from blockdiff_kernels.moe.plan import RouterPlan, Routing
from blockdiff_kernels.moe.rules import Softmax
from blockdiff_kernels.moe.stacks import ExpertWeights, WeightStack, dense_weights, stack_quantized
from blockdiff_kernels.moe.triton import products
from blockdiff_kernels.projection.sources import Plain
from blockdiff_kernels.quantized_linear import dequantize, pack_int4
from blockdiff_kernels.quantized_linear.quantize import quantize_fp8, quantize_int
from tests.kernels.errors import assert_near

EXPERTS, TOP_K, SHARED = 5, 2, 1
STACKED = EXPERTS + SHARED
BOTH = [torch.float32, torch.bfloat16]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def int4(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    values, scale = quantize_int(weight, 4, group)
    return pack_int4(values), scale


def blocks_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A scale for 16 columns."""
    values, scale = quantize_fp8(weight.view(-1, 16))
    return values.view(weight.shape), scale.view(weight.shape[0], -1)


FORMATS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "int8": lambda weight: quantize_int(weight, 8),
    "int8-groups": lambda weight: quantize_int(weight, 8, 32),
    "fp8": quantize_fp8,
    "fp8-groups": blocks_fp8,
    "int4-32": lambda weight: int4(weight, 32),
    "int4-64": lambda weight: int4(weight, 64),
    "int4-row": lambda weight: int4(weight, weight.shape[1]),
}


def quantized(name: str, inner: int, hidden: int) -> ExpertWeights:
    def stack(*shape: int) -> WeightStack:
        assert len(shape) == 2
        weights = random(STACKED, *shape) / shape[1] ** 0.5
        found = stack_quantized([FORMATS[name](weight) for weight in weights], shape)
        assert found is not None
        return found

    return ExpertWeights(stack(2 * inner, hidden), stack(hidden, inner))


def dense(inner: int, hidden: int, dtype: torch.dtype, activation: str = "silu") -> ExpertWeights:
    gate_up = random(STACKED, 2 * inner, hidden) / hidden**0.5
    down = random(STACKED, inner, hidden) / inner**0.5
    return dense_weights(gate_up.to(dtype), down.to(dtype), activation)


def route(rows: int, hidden: int, dtype: torch.dtype) -> Routing:
    plan = RouterPlan(
        random(EXPERTS + 1, hidden).to(dtype), Softmax(TOP_K), experts=EXPERTS, shared=SHARED
    )
    with using("triton"):
        return choose_experts(Plain(random(rows, hidden).to(dtype)), plan)


def check(routing: Routing, stack: ExpertWeights, residual: Tensor | None = None) -> None:
    with using("triton"):
        found = apply_experts(routing, stack, residual)
    wide = routing._replace(rows=routing.rows.double(), weights=routing.weights.double())
    parts = (stack.gate_up, stack.down)
    gate_up, down = (p if p.scale is not None else WeightStack(p.values.double()) for p in parts)
    exact = define_experts(
        wide,
        ExpertWeights(gate_up, down, stack.activation),
        None if residual is None else residual.double(),
    )
    assert found.dtype == routing.rows.dtype
    assert_near(found, exact)


@pytest.mark.parametrize("dtype", BOTH, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 45])
def test_dense_experts_of_odd_sizes(rows: int, dtype: torch.dtype) -> None:
    check(route(rows, 50, dtype), dense(21, 50, dtype), random(rows, 50).to(dtype))


def test_dense_experts_in_whole_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that need no masks, with every tile of rows."""
    for rows in (16, 32, 64):
        monkeypatch.setattr(tiles, "product_rows", lambda *_, rows=rows: rows)
        check(route(19, 128, torch.bfloat16), dense(64, 128, torch.bfloat16, "gelu_tanh"))


@pytest.mark.parametrize("dtype", BOTH, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_quantized_experts(name: str, dtype: torch.dtype) -> None:
    check(route(9, 128, dtype), quantized(name, 64, 128))


def test_quantized_experts_of_odd_sizes() -> None:
    check(route(5, 96, torch.bfloat16), quantized("int8-groups", 32, 96))
    check(route(5, 96, torch.bfloat16), quantized("int4-32", 96, 96))


def test_floats_of_8_bits_on_devices_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "capability", lambda like: (8, 0))
    check(route(6, 64, torch.float32), quantized("fp8", 32, 64))


def test_one_expert_takes_all_rows_and_others_are_not_read() -> None:
    routing = route(1, 48, torch.float32)
    plan = RouterPlan(random(EXPERTS, 48), Softmax(1), experts=EXPERTS, shared=SHARED)
    stack = dense(24, 48, torch.float32)
    with using("triton"):
        routing = choose_experts(Plain(random(1, 48).expand(40, -1)), plan)
    assert routing.groups.distinct == 2
    busy = int(routing.ids[0, 0])
    for expert in set(range(EXPERTS)) - {busy}:
        stack.gate_up.values[expert] = float("nan")
        stack.down.values[expert] = float("nan")
    check(routing, stack)


def test_padding_and_experts_elsewhere_add_nothing() -> None:
    plan = RouterPlan(random(EXPERTS, 48), Softmax(3), experts=EXPERTS, shared=SHARED, span=(1, 3))
    stack = dense(24, 48, torch.float32)
    own = dense_weights(stack.gate_up.values[:3], stack.down.values.transpose(1, 2)[:3])
    x, residual = random(10, 48), random(10, 48)
    with using("triton"):
        routing = choose_experts(Plain(x), plan, count=torch.tensor([6], dtype=torch.int32))
        y = apply_experts(routing, own, residual)
    assert torch.equal(y[6:], residual[6:])
    exact = residual.double()
    for row in range(6):
        for expert, weight in zip(routing.ids[row].tolist(), routing.weights[row], strict=True):
            place = expert - 1 if expert < EXPERTS else 2
            if 1 <= expert < 3 or expert == EXPERTS:
                part = replace(own, gate_up=WeightStack(own.gate_up.values.double()))
                part = replace(part, down=WeightStack(own.down.values.double()))
                exact[row] += weight.double() * part.apply(place, x[row : row + 1].double())[0]
    assert_near(y, exact)


def test_kinds_that_differ_have_no_stack() -> None:
    weight, shape = random(8, 64), (8, 64)
    assert stack_quantized([quantize_int(weight, 8), quantize_fp8(weight)], shape) is None
    by_row, by_group = quantize_int(weight, 8), quantize_int(weight, 8, 32)
    assert stack_quantized([by_row, by_group], shape) is None
    assert stack_quantized([quantize_int(random(8, 48), 8, 24)], (8, 48)) is None


@pytest.mark.parametrize("name", FORMATS)
def test_smaller_projections_are_filled_up_with_zeros(name: str) -> None:
    weight = random(8, 64)
    stack = stack_quantized([FORMATS[name](weight)], (12, 128))
    assert stack is not None
    exact = dequantize(*FORMATS[name](weight))
    found = stack.matrix(0, torch.float32)
    assert torch.equal(found[:8, :64], exact)
    assert not found[8:].any() and not found[:, 64:].any()
