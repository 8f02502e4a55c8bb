"""Quantised projections against their definition. Run: pytest tests/kernels"""

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.implementation import using
from blockdiff_kernels.quantized_linear import (
    dequantize,
    linear_int4_blocks,
    make_int4_blocks,
    pack_int4,
    quantized_linear,
    reference,
    unpack_int4,
)
from blockdiff_kernels.quantized_linear.quantize import quantize_fp8, quantize_int

# rows, columns: even and odd ones, some that torch's packed products refuse
SIZES = [(16, 32), (64, 128), (33, 64), (7, 10), (1, 16), (48, 96), (80, 256)]
ROWS_OF_X = [1, 3, 8, 9, 40]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def stored(kind: str, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    weight = random(rows, columns, seed=rows)
    if kind == "fp8":
        return quantize_fp8(weight)
    if kind == "int8":
        return quantize_int(weight, 8)
    group = next((g for g in (128, 64, 32) if columns % g == 0), columns)
    values, scale = quantize_int(weight, 4, group)
    return pack_int4(values), scale


def assert_close(got: Tensor, want: Tensor, tolerance: float) -> None:
    assert got.dtype == want.dtype
    error = (got.float() - want.float()).abs().max() / want.float().abs().max()
    assert error <= tolerance


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_path_is_the_definition(kind: str, size: tuple[int, int]) -> None:
    values, scale = stored(kind, *size)
    for rows in ROWS_OF_X:
        x = random(rows, size[1], seed=rows)
        exact = x.double() @ dequantize(values, scale).double().t()
        assert_close(quantized_linear(x, values, scale), exact.float(), 1e-5)
        assert_close(reference.linear(x, values, scale), exact.float(), 1e-5)
        narrow = x.bfloat16()
        want = reference.linear(narrow, values, scale)
        assert_close(quantized_linear(narrow, values, scale), want, 0.015)
        blocks = make_int4_blocks(values, scale, torch.bfloat16)
        if blocks is not None:
            assert_close(linear_int4_blocks(narrow, blocks), want, 0.015)


def test_the_definition_runs_where_it_is_chosen() -> None:
    for kind in ("int8", "int4"):
        values, scale = stored(kind, 32, 64)
        x = random(3, 64).bfloat16()
        with using("reference"):
            assert make_int4_blocks(values, scale, torch.bfloat16) is None
            found = quantized_linear(x, values, scale)
        assert torch.equal(found, reference.linear(x, values, scale))
        assert not torch.equal(found, quantized_linear(x, values, scale)), "there is one path only"


def test_rows_of_x_that_are_not_contiguous() -> None:
    values, scale = stored("int8", 16, 32)
    wide = random(4, 64).bfloat16()
    want = quantized_linear(wide[:, 32:].contiguous(), values, scale)
    assert_close(quantized_linear(wide[:, 32:], values, scale), want, 0.015)
    values, scale = stored("int4", 16, 32)
    blocks = make_int4_blocks(values, scale, torch.bfloat16)
    assert blocks is not None
    want = linear_int4_blocks(wide[:, 32:].contiguous(), blocks)
    assert torch.equal(linear_int4_blocks(wide[:, 32:], blocks), want)


def test_values_at_any_address() -> None:
    values, scale = stored("int8", 16, 32)
    x = random(4, 32).bfloat16()
    want = quantized_linear(x, values, scale)
    memory = torch.zeros(16 * 32 + 16, dtype=torch.int8)
    for offset in (1, 8, 16):
        moved = memory[offset : offset + 16 * 32].view(16, 32)
        moved.copy_(values)
        assert_close(quantized_linear(x, moved, scale), want, 0.015)
    inputs = torch.zeros(4 * 32 + 16, dtype=torch.bfloat16)
    for offset in (1, 8, 16):
        moved = inputs[offset : offset + 4 * 32].view(4, 32)
        moved.copy_(x)
        assert_close(quantized_linear(moved, values, scale), want, 0.015)


@pytest.mark.parametrize(
    ("size", "group", "is_possible"),
    [((16, 32), 32, True), ((64, 128), 64, True), ((33, 64), 64, False), ((16, 48), 16, False)],
)
def test_which_shapes_have_a_packed_product(
    size: tuple[int, int], group: int, is_possible: bool
) -> None:
    values, scale = quantize_int(random(*size), 4, group)
    packed = pack_int4(values)
    assert (make_int4_blocks(packed, scale, torch.bfloat16) is not None) == is_possible
    assert make_int4_blocks(packed, scale, torch.float32) is None


def test_packing_keeps_every_number() -> None:
    values = torch.arange(-8, 8, dtype=torch.int8).repeat(3, 2)
    packed = pack_int4(values)
    assert packed.shape == (3, 16) and packed[0, 0] == 0x10
    assert torch.equal(unpack_int4(packed), values)


@pytest.mark.parametrize("bits", [4, 8])
def test_no_weight_moves_by_more_than_half_a_step(bits: int) -> None:
    weight = random(20, 64) * 3
    values, scale = quantize_int(weight, bits, 32)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    assert values.min() >= low and values.max() <= high
    error = (dequantize(values, scale) - weight).abs().view(20, 2, 32)
    # rounding a scale to bfloat16 moves the largest weight of a group by up to 2 ** -8 of itself
    slack = weight.abs().view(20, 2, 32).amax(-1, keepdim=True) * 2**-8
    assert bool((error <= scale.unsqueeze(-1) / 2 + slack).all())
    assert torch.equal(scale, scale.bfloat16().float())


def test_what_can_be_represented_is_kept() -> None:
    weight = torch.tensor([[-8.0, 7.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    values, scale = quantize_int(weight, 4)
    assert torch.equal(dequantize(values, scale), weight)
    weight = torch.tensor([[448.0, -2.0, 0.015625, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert torch.equal(dequantize(*quantize_fp8(weight)), weight)
