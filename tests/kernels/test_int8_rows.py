"""int8 activations against float64, with the rounding of activations and without it."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.implementation import using
from blockdiff_kernels.int8_rows import Int8Weight, cpu, int8_linear, pack, quantize_rows, reference
from blockdiff_kernels.moe import int8_experts
from blockdiff_kernels.moe import reference as plain_experts
from blockdiff_kernels.quantized_linear.quantize import quantize_int

from .errors import assert_near, relative_error

# outputs, inputs: odd ones; the last two are packed
SIZES = [(1, 1), (7, 10), (33, 64), (48, 97), (1031, 515), (512, 1024)]
EXPERTS, CHOSEN, HIDDEN, INNER = 7, 3, 97, 33
# of the norm, for rows of normal numbers: a step of 1/127 of some three deviations, twice for
# experts, whose gated products have a wider range
ACTIVATIONS, TWICE = 0.012, 0.025


@pytest.fixture(params=["cpu", "reference", "no instructions"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Which products run; what is computed is the same."""
    if request.param == "no instructions":
        monkeypatch.setattr(cpu, "is_exact", lambda: False)
    with using("reference" if request.param == "reference" else "auto"):
        yield request.param


def stored(outputs: int, inputs: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return quantize_int(torch.randn(outputs, inputs, generator=generator) * inputs**-0.5, 8)


def rows_of(count: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)).to(dtype)


def rounded(x: Tensor) -> Tensor:
    """The rows that are multiplied, in float64."""
    codes, scale = quantize_rows(x)
    return codes.double() * scale.double()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products_are_the_definition(size: tuple[int, int], path: str) -> None:
    values, scale = stored(*size)
    weight = values.double() * scale.double()
    packed = pack(values, scale)
    for count in (0, 1, 2, 3, 4, 9, 33):
        for dtype in (torch.float32, torch.bfloat16):
            x = rows_of(count, size[1], dtype)
            y = int8_linear(x, packed)
            assert y.dtype == dtype and y.shape == (count, size[0])
            assert_near(y, rounded(x) @ weight.t())
            if size[1] > 1:
                assert_near(y, x.double() @ weight.t(), ACTIVATIONS + 0.01)


def test_large_weights_are_packed_and_give_the_same_bits() -> None:
    for size in SIZES:
        values, scale = stored(*size)
        packed = pack(values, scale)
        is_large = values.numel() >= cpu.LEAST_NUMBERS and cpu.is_exact()
        assert packed.values.is_mkldnn == is_large
        codes = quantize_rows(rows_of(9, size[1])).codes
        want = cpu._multiply(codes, values).double() * scale.view(-1).double()
        assert torch.equal(cpu.product(codes, *packed), want.float())
        exact = reference.product(codes, values, scale.view(-1))
        torch.testing.assert_close(cpu.product(codes, *packed), exact, rtol=1e-6, atol=1e-6)


def test_codes_are_the_nearest() -> None:
    x = rows_of(50, 128) * torch.logspace(-20, 20, 50, dtype=torch.float32).unsqueeze(1)
    codes, scale = quantize_rows(x)
    assert (codes.abs().amax(1) == 127).all()
    error = (codes.double() * scale.double() - x.double()).abs()
    assert (error <= scale.double() * (0.5 + 1e-5)).all()
    halves = torch.tensor([[127.0, 0.5, 1.5, -2.5, -126.5]])
    assert quantize_rows(halves).codes.tolist() == [[127, 0, 2, -2, -126]]


def test_rows_that_are_not_numbers_harm_no_other(path: str) -> None:
    for size in ((33, 64), (512, 1024)):
        packed = pack(*stored(*size))
        x = rows_of(9, size[1])
        want = int8_linear(x, packed)
        x[1, 3], x[4, 5], x[7] = float("nan"), float("-inf"), float("inf")
        x[5], x[6] = 0.0, 1e-38
        y = int8_linear(x, packed)
        kept = [0, 2, 3, 8]
        assert torch.equal(y[kept], want[kept])
        assert not y[[1, 4, 7]].isfinite().any()
        assert (y[5] == 0).all() and y[6].abs().max() <= 1e-29


def test_a_row_has_the_same_bits_in_any_company() -> None:
    for size in ((48, 97), (512, 1024)):
        packed = pack(*stored(*size))
        x = rows_of(300, size[1])
        want = int8_linear(x, packed)
        for count in (1, 2, 5, 64, 129):
            start = 300 - 2 * count if count < 150 else 0
            assert torch.equal(int8_linear(x[start : start + count], packed), want[start:][:count])


@pytest.mark.parametrize("elsewhere", [None, "some", "all"], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_experts_are_the_definition(rows: int, elsewhere: str | None, path: str) -> None:
    gate_up = [stored(2 * INNER, HIDDEN, seed) for seed in range(EXPERTS)]
    down = [stored(HIDDEN, INNER, seed) for seed in range(EXPERTS)]
    x = rows_of(rows, HIDDEN)
    ids = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(rows)] or [ids_of_none()])
    ids = ids[:rows]
    if elsewhere is not None:
        ids[:, : 1 if elsewhere == "some" else CHOSEN] = EXPERTS
    weights = torch.rand(ids.shape)
    y = int8_experts(x, weights, ids, packed_of(gate_up), packed_of(down))
    assert y.dtype == x.dtype and y.shape == x.shape

    def apply(expert: int, part: Tensor) -> Tensor:
        both = (rounded(part) @ wide(gate_up[expert]).t()).bfloat16()
        gate, up = both.chunk(2, dim=-1)
        return rounded(plain_experts.gated(gate, up)) @ wide(down[expert]).t()

    exact = plain_experts.experts_one_by_one(x.double(), weights, ids, EXPERTS, apply)
    assert_near(y, exact)
    unrounded = plain_experts.grouped_experts(
        x.double(),
        weights.double(),
        ids,
        torch.stack([wide(own) for own in gate_up]),
        torch.stack([wide(own).t() for own in down]),
    )
    assert relative_error(y, unrounded) <= TWICE


def ids_of_none() -> Tensor:
    return torch.zeros(CHOSEN, dtype=torch.long)


def packed_of(owns: list[tuple[Tensor, Tensor]]) -> list[Int8Weight]:
    return [pack(*own) for own in owns]


def wide(own: tuple[Tensor, Tensor]) -> Tensor:
    return own[0].double() * own[1].double()
