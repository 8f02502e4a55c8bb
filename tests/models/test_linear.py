"""Cutting and joining projections keeps their outputs. Run: pytest tests/models"""

import pytest
import torch
from torch import Tensor

from blockdiff.models.layers.linear import DenseLinear, Linear, StackedLinear, concat_rows
from blockdiff.models.layers.quantized import QuantizedLinear
from blockdiff_kernels.implementation import using
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.projection import Normed
from blockdiff_kernels.quantized_linear.quantize import quantize_int


class ScaledLinear(DenseLinear):
    """Stands for a second kind that cannot be joined with the first."""


def weight(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed))


def stacked() -> tuple[Linear, Tensor]:
    """Five outputs of one kind, three of another, two of the first."""
    a, b, c = weight(5, 0), weight(3, 1), weight(2, 2)
    joined = concat_rows([DenseLinear(a), ScaledLinear(b), DenseLinear(c)])
    return joined, torch.cat((a, b, c))


X = torch.randn(4, 6, generator=torch.Generator().manual_seed(9))


def test_equal_kinds_become_one_product_and_others_stay_apart() -> None:
    one = concat_rows([DenseLinear(weight(5, 0)), DenseLinear(weight(3, 1))])
    assert isinstance(one, DenseLinear) and one.out_features == 8
    mixed, _ = stacked()
    assert isinstance(mixed, StackedLinear)
    assert [part.out_features for part in mixed.parts] == [5, 3, 2]
    again = concat_rows([mixed, DenseLinear(weight(1, 3))])
    assert isinstance(again, StackedLinear)
    assert [part.out_features for part in again.parts] == [5, 3, 3]


@pytest.mark.parametrize("spans", [[(0, 10)], [(2, 7)], [(8, 10), (0, 1), (4, 9)], [(5, 8)]])
def test_rows_of_a_stack(spans: list[tuple[int, int]]) -> None:
    linear, full = stacked()
    want = X @ torch.cat([full[start:stop] for start, stop in spans]).t()
    got = linear.rows(spans)
    assert got.out_features == want.shape[1]
    torch.testing.assert_close(got(X), want)


def test_column_parts_add_up() -> None:
    linear, full = stacked()
    left, right = linear.columns(0, 2), linear.columns(2, 6)
    assert (left.in_features, right.in_features) == (2, 4)
    torch.testing.assert_close(left(X[:, :2]) + right(X[:, 2:]), X @ full.t())


@pytest.mark.parametrize("kind", ["dense", "quantized", "stacked"])
def test_of_a_source_by_its_definition_and_by_kernels(kind: str) -> None:
    dense, quantized = DenseLinear(weight(5, 0)), QuantizedLinear(*quantize_int(weight(3, 1), 8))
    linear = {"dense": dense, "quantized": quantized}.get(kind, StackedLinear([dense, quantized]))
    source = Normed(X, torch.linspace(-1, 1, 6), 1e-6, NormKind.ZERO_CENTRED)
    residual = torch.randn(4, linear.out_features, generator=torch.Generator().manual_seed(2))
    want = residual + linear(source.rows())
    assert torch.equal(linear.of(source, residual), want)
    assert torch.equal(linear.of(source), linear(source.rows()))
    with using("triton"):
        torch.testing.assert_close(linear.of(source, residual), want)
        torch.testing.assert_close(linear.of(source), want - residual)
