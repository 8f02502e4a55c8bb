"""Tile sizes of rotary kernels by width. Knows nothing of what they compute."""

from typing import NamedTuple

# numbers that a program holds: 4 a thread of 4 warps
NUMBERS = 512


class RowTile(NamedTuple):
    rows: int
    num_warps: int


def rows_of(width: int) -> RowTile:
    """Rows of one program; wide ones have more warps instead."""
    rows = 1
    while rows * 2 * width <= NUMBERS:
        rows *= 2
    return RowTile(rows, 4)
