"""Functions of rows in tiles, and activations whose bits do not depend on the place."""

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.pointwise import FAST, STEADY
from blockdiff_kernels.row_tiles import SIZES, TILE, RowTiles, round_up


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100, 513, 1030])
@pytest.mark.parametrize("dim", [0, 1])
def test_rows_come_back_in_order(count: int, dim: int) -> None:
    x = torch.randn((count, 64) if dim == 0 else (3, count, 64))
    calls: list[int] = []

    def double(rows: Tensor) -> Tensor:
        calls.append(rows.shape[dim])
        return rows * 2

    assert torch.equal(RowTiles().run("double", double, x, dim), x * 2)
    assert set(calls) <= {*SIZES, count if not count else TILE}
    assert round_up(count) >= count


def test_sizes_that_compute_otherwise_are_not_used() -> None:
    """A function whose result depends on how many rows there are runs in tiles."""
    calls: list[int] = []

    def uneven(rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return rows + len(rows)

    x, tiles = torch.randn(90, 8), RowTiles()
    assert torch.equal(tiles.run("uneven", uneven, x), x + TILE)
    calls.clear()
    tiles.run("uneven", uneven, x)
    assert set(calls) == {TILE}


def test_rows_go_one_by_one_where_places_matter() -> None:
    def placed(rows: Tensor) -> Tensor:
        return rows + torch.arange(len(rows)).unsqueeze(1)

    x = torch.randn(20, 8)
    assert torch.equal(RowTiles().run("placed", placed, x), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["silu", "sigmoid", "softplus", "gelu_tanh"])
def test_activations_are_torchs_and_the_same_at_every_place(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(70001) * 5).to(dtype)
    steady = getattr(STEADY, name)
    whole = steady(x)
    torch.testing.assert_close(whole, getattr(FAST, name)(x))
    for start, stop in ((1, 70001), (3, 18), (40000, 40001), (17, 65569)):
        assert torch.equal(steady(x[start:stop].clone()), whole[start:stop])
    extremes = torch.tensor([-1e30, -200.0, 0.0, 200.0, 1e9], dtype=dtype)
    torch.testing.assert_close(steady(extremes), getattr(FAST, name)(extremes))
