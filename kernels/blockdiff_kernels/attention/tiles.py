"""Tile sizes of block attention by head dimension, rows and device, and into how many parts the
keys of a segment are split. Knows nothing of what they compute."""

from typing import NamedTuple

SMALLEST = 16  # side of a product
# of A100, H100 and B200, by major capability; others are taken to have as little as the first
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
    num_stages: int  # of two loads, pages and then keys: 5 hold three tiles of keys


def attention_tile(
    dim: int, rows: int, itemsize: int, capability: tuple[int, int]
) -> AttentionTile:
    """For ``rows`` per segment and key head, of padded head dimension ``dim``."""
    is_small, is_tall = capability[0] not in (9, 10), rows > ROWS_OF_BLOCKS
    if itemsize > 2:
        return AttentionTile(64 if dim <= 256 else 32, 32 if dim <= 128 else 16, 128, 4, 1)
    if dim > 256:
        return AttentionTile(64, 32, 256, 4, 3) if is_small else AttentionTile(128, 32, 256, 8, 3)
    if dim > 128:
        # 64 rows on 4 warps would take as many registers a thread, and spill some
        return AttentionTile(64, 32, 256, 8, 3) if is_small else AttentionTile(128, 32, 256, 8, 5)
    if is_small:
        return AttentionTile(64, 32, 128, 4, 3)
    return AttentionTile(128, 64, 128, 8, 5) if is_tall else AttentionTile(64, 64, 128, 4, 5)


def count_parts(programs: int, keys: int, capability: tuple[int, int]) -> int:
    """Parts of up to ``keys`` keys so that ``programs`` times as many fill the device."""
    wanted = MULTIPROCESSORS.get(capability[0], MULTIPROCESSORS[8]) // max(programs, 1)
    return max(1, min(wanted, keys // KEYS_PER_PART, MOST_PARTS))


def merge_rows(width: int) -> int:
    """Heads of rows that one merging program holds."""
    return max(1, 1024 // width)
