"""Cutting and joining projections keeps their outputs. Run: pytest tests/models"""

import pytest
import torch
from torch import Tensor

from blockdiff.models.layers.linear import DenseLinear, Linear, StackedLinear, concat_rows


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
