"""Tile sizes of the output head by rows and device. Knows nothing of what it computes.

Vocabulary on the side of 64 that wgmma fills, rows on the other: more than 64 rows of one program
spill, and noise needs as many registers again as logits do.
"""

from typing import NamedTuple

AMPERE = (8, 0)


class ScoreTile(NamedTuple):
    vocabulary: int  # BV
    rows: int  # BT
    hidden: int  # BK
    num_warps: int
    num_stages: int


def score_tile(rows: int, itemsize: int, is_drawn: bool, capability: tuple[int, int]) -> ScoreTile:
    """Of one program; programs of the same part of the vocabulary run side by side."""
    if itemsize > 2:
        return ScoreTile(64, 16, 32, 4, 3)
    stages = 3 if capability == AMPERE else 4
    if rows <= 16:
        return ScoreTile(128, 16, 64, 4, stages)
    if rows <= 32 or is_drawn:
        return ScoreTile(128, 32, 64, 4, stages)
    return ScoreTile(128, 64, 64, 4, stages)
