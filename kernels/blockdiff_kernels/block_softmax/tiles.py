"""Tile sizes of the block softmax. Knows nothing of what it computes."""

from typing import NamedTuple

from blockdiff_kernels.launch import power_of_two


class BlockTile(NamedTuple):
    rows: int
    values: int
    num_warps: int


def block(longest: int, value_dim: int) -> BlockTile:
    """Of segments of up to ``longest`` rows."""
    values = min(64, max(16, power_of_two(value_dim)))
    return BlockTile(16 if longest <= 16 else 32, values, 4)
