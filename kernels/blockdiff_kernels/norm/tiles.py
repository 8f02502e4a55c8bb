"""Tile sizes of the norms by width. Knows nothing of what they compute."""

from typing import NamedTuple

# numbers that a program holds: 16 a thread of 4 warps
NUMBERS = 2048


class RowTile(NamedTuple):
    rows: int
    num_warps: int


def rows_of(width: int) -> RowTile:
    """Rows of one program; wide rows have one of their own."""
    rows = 1
    while rows * 2 * width <= NUMBERS:
        rows *= 2
    return RowTile(rows, 8 if width > NUMBERS else 4)
