"""Tile sizes of the expected embedding. Knows nothing of what it computes."""

from typing import NamedTuple

from blockdiff_kernels.projection.tiles import LEAST_SHARED, SHARED

# logits that a program scans for a row's largest one and sum
SCANNED, SCANNED_AT_ONCE = 1 << 15, 4096
# programs that keep a GPU busy
PROGRAMS = 128
MOST_SPLITS = 8
HOPPER = (9, 0)


class Tile(NamedTuple):
    rows: int
    width: int
    vocabulary: int
    num_warps: int
    num_stages: int
    splits: int


def choose(
    rows: int, vocabulary: int, width: int, itemsize: int, capability: tuple[int, int]
) -> Tile:
    """Canvases have many rows: these are the tiles' long side, so that logits are read seldom."""
    if itemsize == 4:
        sides, num_warps = (16, 64, 32), 4
    elif rows <= 64:
        sides, num_warps = (64, 128, 64), 4
    else:
        # where sums live in registers beside the operands, fewer of them
        sides, num_warps = (128, 128 if capability < HOPPER else 256, 64), 8
    programs = max(1, -(-rows // sides[0]) * -(-width // sides[1]))
    steps = -(-vocabulary // sides[2])
    splits = max(1, min(PROGRAMS // programs, steps // 4, MOST_SPLITS))
    stage = sides[2] * (sides[0] * 4 + sides[1] * itemsize)
    num_stages = max(1, min(4, SHARED.get(capability, LEAST_SHARED) // stage))
    return Tile(*sides, num_warps, num_stages, splits)
