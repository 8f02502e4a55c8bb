"""Segments of a round sorted into groups that are processed together, on the host.

The n-th writing segments of all slots make the n-th wave. Knows nothing of layers or devices.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blockdiff.models.base import RoundBatch
from blockdiff.models.round_shape import RoundShape
from blockdiff.pages import Ints

Flags = npt.NDArray[np.bool_]

# writing segments up to this many rows are not padded to the length of a long prefill chunk
SHORT_ROWS = 64


@dataclass(frozen=True, eq=False)
class GroupRows:
    """G segments of one wave, or previews, padded to T rows each."""

    wave: int | None  # None: previews
    members: Ints  # [G] segment numbers
    lengths: Ints  # [G]
    rows: Ints  # [G, T] flat rows; padding repeats the segment's last one
    is_padded: bool

    @property
    def is_writing(self) -> bool:
        return self.wave is not None

    @property
    def width(self) -> int:
        """T."""
        return self.rows.shape[1]


def group_segments(batch: RoundBatch, separates_blocks: bool = False) -> list[GroupRows]:
    """The groups that are not empty, in processing order: waves one by one, then previews.

    ``separates_blocks``: previews of different lengths are groups of their own, so that the shape
    of a preview is its request's alone.
    """
    lengths = batch.lengths
    assert len(lengths) and lengths.min() > 0, "a round needs segments and a segment needs rows"
    waves, is_short = _number_waves(batch), lengths <= SHORT_ROWS
    chosen: list[tuple[int | None, Flags]] = []
    for wave in range(int(waves.max()) + 1):
        chosen += [(wave, (waves == wave) & kind) for kind in (~is_short, is_short)]
    is_preview = waves < 0
    widths = np.unique(lengths[is_preview]) if separates_blocks else lengths[:0]
    chosen += [(None, is_preview & (lengths == width)) for width in widths]
    chosen.append((None, is_preview & ~np.isin(lengths, widths)))
    return [_group(batch, wave, np.flatnonzero(picked)) for wave, picked in chosen if picked.any()]


def shaped_groups(batch: RoundBatch, shape: RoundShape) -> list[GroupRows]:
    """The groups of a batch that was filled up to ``shape``: one that writes, one of previews."""
    members, last = np.arange(len(batch.slots)), len(batch.token_ids) - 1
    parts = ((0, members[: shape.writing]), (None, members[shape.writing :]))
    return [
        GroupRows(
            wave,
            chosen,
            batch.lengths[chosen],
            np.minimum(_rows(batch, chosen, shape.width), last),
            is_padded=True,
        )
        for wave, chosen in parts
        if len(chosen)
    ]


def _number_waves(batch: RoundBatch) -> Ints:
    """[S] how many earlier writing segments of its slot a writing segment has; -1 for previews."""
    waves = np.full(len(batch.slots), -1, np.int64)
    writing = np.flatnonzero(batch.is_writing)
    order = np.argsort(batch.slots[writing], kind="stable")
    slots = batch.slots[writing][order]
    is_first = np.ones(len(slots), np.bool_)
    is_first[1:] = slots[1:] != slots[:-1]
    places = np.arange(len(slots))
    waves[writing[order]] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return waves


def _group(batch: RoundBatch, wave: int | None, members: Ints) -> GroupRows:
    lengths = batch.lengths[members]
    width = int(lengths.max())
    rows = _rows(batch, members, width)
    return GroupRows(wave, members, lengths, rows, bool(lengths.min() != width))


def _rows(batch: RoundBatch, members: Ints, width: int) -> Ints:
    last = np.maximum(batch.lengths[members, None] - 1, 0)
    rows: Ints = batch.segment_starts[members, None] + np.minimum(np.arange(width), last)
    return rows


def way_back(groups: list[GroupRows], total: int) -> Ints | None:
    """For every flat row, where it lies in the groups' padded rows laid end to end.

    None: the rows of the only group are in order. Rows of no segment are sent to the first place.
    """
    if len(groups) == 1 and not groups[0].is_padded:
        return None
    back, offset = np.zeros(total, np.int64), 0
    for group in groups:
        rows, places = group.rows.ravel(), np.arange(offset, offset + group.rows.size)
        if group.is_padded:
            kept = (np.arange(group.width) < group.lengths[:, None]).ravel()
            rows, places = rows[kept], places[kept]
        back[rows] = places
        offset += group.rows.size
    return back
