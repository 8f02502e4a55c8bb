"""Projection kernels of every source against float64. Run: pytest tests/kernels"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.implementation import using
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.projection import GatedNormed, GatedPair, Normed, Plain, Source, projection
from tests.kernels.errors import assert_near

EPS = 1e-6
# rows, columns, outputs; few outputs of many columns are split over programs
SHAPES = [(1, 33, 17), (17, 300, 1), (33, 64, 300), (5, 600, 33), (150, 17, 40)]
HEADS = [(17, 3, 16), (5, 12, 40), (1, 1, 128)]
DTYPES = [torch.float32, torch.bfloat16]


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight


def check(source: Source, exact_rows: Tensor, outputs: int, dtype: torch.dtype) -> None:
    """With and without a residual that is a view of wider rows."""
    weight = random(outputs, exact_rows.shape[1], dtype=dtype, seed=1)
    residual = random(exact_rows.shape[0], outputs + 3, dtype=dtype, seed=2)[:, 3:]
    exact = exact_rows @ weight.double().t()
    with using("projection=triton"):
        assert_near(projection(source, weight), exact)
        assert_near(projection(source, weight, residual), residual.double() + exact)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_as_they_are_and_normed(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, columns, outputs = shape
    x = random(rows, columns + 16, dtype=dtype)[:, 16:]
    check(Plain(x), x.double(), outputs, dtype)
    weight = random(columns, dtype=dtype, seed=3)
    for kind in (NormKind.ZERO_CENTRED, NormKind.SCALED, NormKind.PLAIN):
        exact = normed(x.double(), weight.double() + (kind is NormKind.ZERO_CENTRED))
        check(Normed(x, weight, EPS, kind), exact, outputs, dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_pairs(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, columns, outputs = shape
    gate_up = random(rows, 2 * columns, dtype=dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": torch.nn.functional.silu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }
    for name, function in functions.items():
        check(GatedPair(gate_up, name), function(gate) * up, outputs, dtype)


@pytest.mark.parametrize("shape", HEADS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heads_normed_and_gated(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, heads, width = shape
    x = random(*shape, dtype=torch.float32)
    # the gate is a part of wider rows, as in a layer
    wide = random(rows, heads * width + 21, dtype=dtype, seed=4)
    gate = wide[:, 16 : 16 + heads * width].view(shape)
    weight = random(width, dtype=torch.float32, seed=5)
    exact = normed(x.double(), weight.double()) * torch.nn.functional.silu(gate.double())
    check(GatedNormed(x, gate, weight, EPS), exact.flatten(1), 33, dtype)


def test_no_rows() -> None:
    source = Plain(torch.zeros(0, 32))
    with using("projection=triton"):
        assert projection(source, torch.zeros(7, 32)).shape == (0, 7)
