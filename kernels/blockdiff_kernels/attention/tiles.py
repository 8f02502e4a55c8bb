"""Tile sizes of block attention by head dimension, rows and device, and into how many parts the
keys of a segment are split. Knows nothing of what they compute."""

from typing import NamedTuple

SMALLEST = 16  # side of a product
MULTIPROCESSORS = {8: 108, 9: 132, 10: 148}
# tiles of more rows pay where a segment has more than those of a block
ROWS_OF_BLOCKS = 512
# keys that a part has at least: below, merging costs more than it brings
KEYS_PER_PART = 128
MOST_PARTS = 32


class AttentionTile(NamedTuple):
    rows: int  # query heads of a key head times queries
    keys: int
    values: int  # dimensions of the values; others are another program's, which scores again
    num_warps: int
    num_stages: int


def attention_tile(
    dim: int, rows: int, itemsize: int, capability: tuple[int, int]
) -> AttentionTile:
    """For ``rows`` per segment and key head, of padded head dimension ``dim``."""
    is_small, is_tall = capability[0] < 9, rows > ROWS_OF_BLOCKS
    if itemsize > 2:
        return AttentionTile(64, 32 if dim <= 128 else 16, 128, 4, 1)
    if dim > 128:
        if is_small:
            return AttentionTile(64, 32, 256, 8 if dim <= 256 else 4, 2)
        # half of the rows on half of the warps would fill as many registers and spill some
        return AttentionTile(128, 32, 256, 8, 3 if dim <= 256 else 2)
    if is_small:
        return AttentionTile(64, 32, 128, 4, 3)
    return AttentionTile(128, 64, 128, 8, 3) if is_tall else AttentionTile(64, 64, 128, 4, 3)


def count_parts(programs: int, keys: int, capability: tuple[int, int]) -> int:
    """Parts of up to ``keys`` keys so that ``programs`` times as many fill the device."""
    wanted = MULTIPROCESSORS[capability[0]] // max(programs, 1)
    return max(1, min(wanted, keys // KEYS_PER_PART, MOST_PARTS))


def merge_rows(width: int) -> int:
    """Heads of rows that one merging program holds."""
    return max(1, 1024 // width)
