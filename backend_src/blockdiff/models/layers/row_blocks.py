"""Which block every row of a round belongs to, for routers that look at whole blocks.

Knows nothing of routers; a row's block depends on its own segment alone.
"""

from enum import Enum

import torch
from torch import Tensor

from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch
from blockdiff_kernels.coreset import RowBlocks


class BlockCover(Enum):
    """The rows whose blocks are numbered."""

    PREVIEWS = "previews"
    ALL = "all"


def number_blocks(batch: RoundBatch, owner: Tensor, cover: BlockCover) -> RowBlocks:
    """Blocks of ``batch``, numbered in row order; ``owner`` [R] int64 is each row's segment.

    A preview is one block. Writing rows, where covered, are cut by the grid of their segment's
    block length anchored at position 0; the rows that a segment holds of a block make one block.
    """
    is_written = (batch.phases != int(Phase.PREVIEW)).index_select(0, owner)
    grid = batch.positions // batch.block_lengths.index_select(0, owner)
    is_first = torch.ones_like(is_written)
    is_first[1:] = (owner[1:] != owner[:-1]) | is_written[1:] & (grid[1:] != grid[:-1])
    if cover is BlockCover.PREVIEWS:
        is_first &= ~is_written
    numbers = is_first.cumsum(0) - 1
    count = int(numbers[-1]) + 1
    if cover is BlockCover.PREVIEWS:
        numbers = numbers.masked_fill(is_written, -1)
    return RowBlocks(numbers, count)
