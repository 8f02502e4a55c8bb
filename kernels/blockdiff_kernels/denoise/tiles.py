"""Tile sizes of the updates by block length. Knows nothing of what they compute."""

from typing import NamedTuple

# pairs of places that a program compares at one time: 32 a thread of 4 warps
PAIRS = 4096


class BlockTile(NamedTuple):
    places: int  # BB, a power of two
    others: int  # BJ, places that all of them are compared with at one time
    num_warps: int


def block_tile(places: int) -> BlockTile:
    """For blocks that fit ``places``, a power of two."""
    others = max(min(places, PAIRS // places), 1)
    return BlockTile(places, others, 1 if places <= 32 else 4)
