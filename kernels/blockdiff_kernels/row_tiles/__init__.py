"""Functions of rows that give a row the same bits whatever rows are beside it, and how many.

A matrix product may add up in another order when it has another number of rows. So functions are
only called with numbers of rows from a short list, rows of zeros filling up the last call. The
smallest, ``TILE``, defines the result. A larger one is used only where it has been seen to give the
same bits as tiles do; where a tile's rows depend on their places in it, rows go one by one.

What a library does depends on shapes, dtype and threads, not on values, so that one comparison over
many random numbers settles a shape. Knows nothing of what is computed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

TILE = 16
SIZES = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
# results compared for a shape: rounding to bfloat16 hides most differences of sums
COMPARED = 1 << 15

RowFunction = Callable[[Tensor], Tensor]


def round_up(count: int) -> int:
    """Rows that ``count`` rows are filled up to."""
    whole, rest = divmod(count, SIZES[-1])
    return whole * SIZES[-1] + (SIZES[bisect_left(SIZES, rest)] if rest else 0)


class RowTiles:
    """Runs row functions, and remembers which numbers of rows have been compared."""

    def __init__(self) -> None:
        self._proven: dict[tuple[Hashable, ...], bool] = {}

    def run(self, key: Hashable, function: RowFunction, x: Tensor, dim: int = 0) -> Tensor:
        """``function(x)`` of x, whose rows lie along ``dim``, and which gives a row for each.

        ``key`` names what ``function`` does to a row: equal for functions of equal shapes.
        """
        count = x.shape[dim]
        if not count:
            return function(x)
        filled = round_up(count)
        if filled != count:
            x = torch.cat((x, x.new_zeros(_with(x, dim, filled - count))), dim)
        pieces, start = [], 0
        while start < filled:
            size = self._choose(key, function, x, dim, filled - start)
            pieces.append(function(x if size == filled else x.narrow(dim, start, size)))
            start += size
        y = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)
        return y if filled == count else y.narrow(dim, 0, count)

    def _choose(self, key: Hashable, function: RowFunction, x: Tensor, dim: int, rest: int) -> int:
        """The largest number of rows up to ``rest`` that may be used."""
        kind = (key, x.dtype, x.device, torch.get_num_threads())
        for size in reversed(SIZES[: bisect_right(SIZES, rest)]):
            mark = (kind, size)
            if mark not in self._proven:
                self._proven[mark] = _compare(function, x, dim, size)
            if self._proven[mark]:
                return size
        return 1


def _with(x: Tensor, dim: int, size: int) -> list[int]:
    """The shape of ``x`` with another number of rows."""
    return [*x.shape[:dim], size, *x.shape[dim + 1 :]]


def _compare(function: RowFunction, like: Tensor, dim: int, size: int) -> bool:
    """Whether random rows have the same bits in one call and in tiles, or anywhere in a tile."""
    generator = torch.Generator(like.device).manual_seed(size)
    compared = 0
    while compared < COMPARED:
        shape = _with(like, dim, size)
        rows = torch.randn(shape, generator=generator, device=like.device).to(like.dtype)
        whole = function(rows)
        if size == TILE:
            order = torch.randperm(TILE, generator=generator, device=like.device)
            again = function(rows.index_select(dim, order))
            whole = whole.index_select(dim, order)
        else:
            again = torch.cat([function(tile) for tile in rows.split(TILE, dim)], dim)
        if not torch.equal(whole, again):
            return False
        compared += whole.numel()
    return True
