"""Rounds of few shapes: a batch filled up with segments without rows and rows of no segment.

Everything that a step's tensors and launches are sized by is in the shape. Knows nothing of layers
or of what a round is for.
"""

from dataclasses import dataclass, replace

import numpy as np

from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch
from blockdiff.pages import NO_SNAPSHOT, Ints, count_pages


@dataclass(frozen=True)
class RoundShape:
    """The most that a round may have; at least one of its segments of each kind must be real."""

    rows: int
    writing: int
    """Writing segments, of one wave."""
    previews: int
    width: int
    """Rows of the longest segment."""
    logit_rows: int
    pages: int
    """Pages of committed rows of a segment."""

    @property
    def blocks(self) -> int:
        """The most blocks of a grid at least as wide as segments are long."""
        return self.previews + 2 * self.writing

    @classmethod
    def of(cls, batch: RoundBatch, page_length: int) -> "RoundShape":
        """The least that ``batch`` needs."""
        writing = int(batch.is_writing.sum())
        return cls(
            rows=len(batch.token_ids),
            writing=writing,
            previews=len(batch.slots) - writing,
            width=int(batch.lengths.max()),
            logit_rows=len(batch.logit_rows),
            pages=count_pages(int(batch.contexts.max()), page_length),
        )

    def holds(self, other: "RoundShape") -> bool:
        """Whether a round of shape ``other`` can be filled up to this one."""
        # a filler without a real segment beside it would have nothing to repeat
        return (
            (other.writing > 0) == (self.writing > 0)
            and (other.previews > 0) == (self.previews > 0)
            and other.rows <= self.rows
            and other.writing <= self.writing
            and other.previews <= self.previews
            and other.width <= self.width
            and other.logit_rows <= self.logit_rows
            and other.pages <= self.pages
        )


def fill_up(batch: RoundBatch, shape: RoundShape, num_slots: int) -> RoundBatch:
    """``batch``, writing segments first, with the segments, rows and logit rows of ``shape``.

    Filler segments have no rows; writing ones stand for slots that do not write. Filler rows belong
    to no segment and come last, as do filler logit rows, which name row 0.
    """
    assert np.all(np.diff(batch.is_writing.astype(np.int8)) <= 0), "writing segments come first"
    count = int(batch.is_writing.sum())
    # where each line of the result comes from; -1: filler
    lines = np.full(shape.writing + shape.previews, -1)
    lines[:count] = np.arange(count)
    real = len(batch.slots) - count
    lines[shape.writing : shape.writing + real] = count + np.arange(real)
    is_filler = lines < 0
    lengths = np.where(is_filler, 0, batch.lengths[lines])
    spare = np.setdiff1d(np.arange(num_slots), batch.slots[:count])
    slots = np.where(is_filler, 0, batch.slots[lines])
    slots[count : shape.writing] = spare[: shape.writing - count]
    phases = np.full(len(lines), int(Phase.PREVIEW))
    phases[: shape.writing] = int(Phase.COMMIT)
    return replace(
        batch,
        token_ids=_longer(batch.token_ids, shape.rows),
        positions=_longer(batch.positions, shape.rows),
        segment_starts=np.concatenate([[0], np.cumsum(lengths)]),
        phases=phases,
        slots=slots,
        contexts=np.where(is_filler, 0, batch.contexts[lines]),
        logit_rows=_longer(batch.logit_rows, shape.logit_rows),
        block_lengths=np.where(is_filler, 1, batch.block_lengths[lines]),
        pages=None if batch.pages is None else np.where(is_filler[:, None], 0, batch.pages[lines]),
        snapshots=np.where(is_filler, NO_SNAPSHOT, _snapshots(batch)[lines]),
    )


def _longer(numbers: Ints, length: int) -> Ints:
    longer = np.zeros(length, np.int64)
    longer[: len(numbers)] = numbers
    return longer


def _snapshots(batch: RoundBatch) -> Ints:
    if batch.snapshots is None:
        return np.full(len(batch.slots), NO_SNAPSHOT)
    return batch.snapshots
