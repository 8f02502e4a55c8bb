"""The few shapes that rounds are filled up to, and the smallest one for a round.

Knows sizes of rounds; knows nothing of devices or of how steps are captured.
"""

import math
from collections.abc import Sequence

import numpy as np

from blockdiff.models.base import ModelInfo, RoundBatch
from blockdiff.models.round_shape import RoundShape

# Page tables are this part of the longest, or all of it: kernels look at no more than a context
# needs, but a longer table takes longer to lay out and to copy.
PAGE_SHARES = (1 / 8, 1)
FEW_PAGES = 16

# why a round is not replayed
LONG = "long"
"""A writing segment is longer than a block: chunks of prompts."""
WAVES = "waves"
"""A slot writes twice: a snapshot is taken inside a chunk."""
SIZE = "size"
"""No captured step is large enough, or none has these kinds of segments."""
REASONS = (LONG, WAVES, SIZE)


def step_shapes(
    info: ModelInfo, sizes: Sequence[int], num_slots: int, pages_per_slot: int
) -> tuple[RoundShape, ...]:
    """Shapes of all steps, smaller ones first.

    For each of ``sizes`` n, n blocks' rows: previews alone; commits riding along, which share the
    rows with previews; and single rows of n requests. Sizes beyond what all slots can fill are left
    out, but for the first one that has room for it.
    """
    block, single = info.block_length, info.supports_autoregressive
    shapes = []
    for pages in page_counts(pages_per_slot):
        for size in _enough(sizes, 2 * num_slots):
            segments, rows = min(size, num_slots), size * block
            if size in _enough(sizes, num_slots):
                if info.decodes_blocks:
                    shapes.append(RoundShape(rows, 0, segments, block, rows, pages))
                if single:
                    shapes.append(RoundShape(size, segments, 0, 1, size, pages))
            if info.decodes_blocks and size > 1:
                shapes.append(RoundShape(rows, segments, segments, block, rows, pages))
    return tuple(sorted(shapes, key=lambda shape: (shape.rows, shape.pages, shape.writing)))


def page_counts(pages_per_slot: int) -> tuple[int, ...]:
    """Lengths of page tables, shorter ones first."""
    wanted = (max(math.ceil(share * pages_per_slot), FEW_PAGES) for share in PAGE_SHARES)
    return tuple(sorted({min(count, pages_per_slot) for count in wanted}))


def _enough(sizes: Sequence[int], most: int) -> list[int]:
    ordered = sorted(sizes)
    larger = [size for size in ordered if size >= most]
    return [size for size in ordered if size < most] + larger[:1]


def find_shape(
    shapes: Sequence[RoundShape], batch: RoundBatch, page_length: int
) -> RoundShape | str:
    """The first of ``shapes`` that ``batch`` can be filled up to, or why there is none."""
    writing = batch.is_writing
    if (batch.lengths > batch.block_lengths)[writing].any():
        return LONG
    slots = batch.slots[writing]
    if len(slots) > 1 and len(np.unique(slots)) < len(slots):
        return WAVES
    needed = RoundShape.of(batch, page_length)
    return next((shape for shape in shapes if shape.holds(needed)), SIZE)
