"""Which block every row of a round belongs to, for routers that look at whole blocks.

Knows nothing of routers; a row's block depends on its own segment alone.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np

from blockdiff.models.base import RoundBatch
from blockdiff.pages import Ints


class BlockCover(Enum):
    """The rows whose blocks are numbered."""

    PREVIEWS = "previews"
    ALL = "all"


@dataclass(frozen=True, eq=False)
class BlockNumbers:
    """Blocks on the host."""

    numbers: Ints  # [R], from 0 on; -1: in no block
    count: int


def number_blocks(batch: RoundBatch, cover: BlockCover) -> BlockNumbers:
    """Blocks of ``batch``, numbered in row order.

    A preview is one block. Writing rows, where covered, are cut by the grid of their segment's
    block length anchored at position 0; the rows that a segment holds of a block make one block.
    """
    owner = batch.owners
    is_written = batch.is_writing[owner]
    grid = batch.positions[: len(owner)] // batch.block_lengths[owner]
    is_first = np.ones(len(owner), np.bool_)
    is_first[1:] = (owner[1:] != owner[:-1]) | is_written[1:] & (grid[1:] != grid[:-1])
    if cover is BlockCover.PREVIEWS:
        is_first &= ~is_written
    numbers = np.cumsum(is_first) - 1
    count = int(numbers[-1]) + 1
    if cover is BlockCover.PREVIEWS:
        numbers[is_written] = -1
    return BlockNumbers(numbers, count)
