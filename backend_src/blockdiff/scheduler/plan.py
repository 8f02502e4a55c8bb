"""One round, as flat arrays: which rows run and which of them are decided.

Built from chosen segments without a Python loop over rows. Knows nothing of torch or results.
"""

from dataclasses import dataclass

import numpy as np

from blockdiff.core import Phase
from blockdiff.pages import CacheWork
from blockdiff.scheduler.arrays import Flags, Ints
from blockdiff.scheduler.choice import Chosen, Segments
from blockdiff.scheduler.memory import Memory
from blockdiff.scheduler.table import SlotTable


@dataclass(frozen=True)
class RoundPlan:
    """R rows in S segments, L decided rows in G groups (one group per canvas or single token).

    A slot may have several writing segments, one after the other, and after them a preview.
    """

    token_ids: Ints
    positions: Ints
    segment_starts: Ints
    phases: Ints
    slots: Ints
    contexts: Ints
    pages: Ints
    """[S, P] pages of each segment's slot, in order of position."""
    snapshots: Ints
    """[S] line that keeps the state after the segment, or -1."""
    logit_rows: Ints

    group_slots: Ints
    """[G] slot of each group."""
    row_groups: Ints
    """[L] group of each decided row."""
    row_places: Ints
    """[L] position of each decided row in its block."""

    prefill_slots: Ints
    prefill_chunks: Ints
    commit_slots: Ints
    preview_slots: Ints
    work: CacheWork | None
    """What the caches need before the forward."""

    @property
    def running_slots(self) -> Ints:
        return np.unique(self.slots)


def build_plan(table: SlotTable, memory: Memory, chosen: Chosen, segments: Segments) -> RoundPlan:
    """The arrays of a round that runs ``segments``, writing ones first."""
    slots, lengths, contexts = segments.slots, segments.lengths, segments.contexts
    starts = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.arange(starts[-1]) + np.repeat(contexts - starts[:-1], lengths)
    # how many segments write
    count = len(slots) - len(chosen.previews)
    written = slice(0, starts[count])
    owners = np.repeat(slots[:count], lengths[:count])
    is_row = np.arange(table.canvas.shape[1]) < lengths[count:, None]

    # The groups: last rows of some writing segments, then the open places of all canvases.
    singles = np.flatnonzero(segments.decides_last_row)
    lines, places = np.nonzero(_open_places(table, chosen.previews, is_row))
    return RoundPlan(
        token_ids=np.concatenate(
            [
                table.sequences[owners, positions[written]].astype(np.int64),
                table.canvas[chosen.previews][is_row],
            ]
        ),
        positions=positions,
        segment_starts=starts,
        phases=segments.phases,
        slots=slots,
        contexts=contexts,
        pages=_pages(memory, segments),
        snapshots=segments.snapshots,
        logit_rows=np.concatenate([starts[singles + 1] - 1, starts[count + lines] + places]),
        group_slots=np.concatenate([slots[singles], chosen.previews]),
        row_groups=np.concatenate([np.arange(len(singles)), len(singles) + lines]),
        row_places=np.concatenate([table.step[slots[singles]], places]),
        prefill_slots=chosen.prefills,
        prefill_chunks=chosen.chunks,
        commit_slots=chosen.commits,
        preview_slots=chosen.previews,
        work=memory.take_work(),
    )


def _pages(memory: Memory, segments: Segments) -> Ints:
    is_written = segments.phases != Phase.PREVIEW
    ends = segments.contexts + np.where(is_written, segments.lengths, 0)
    width = int(memory.pages_for(ends).max())
    pages: Ints = memory.tables[segments.slots, : max(width, 1)]
    return pages


def _open_places(table: SlotTable, slots: Ints, is_row: Flags) -> Flags:
    """Which places [P, B] of the canvases of ``slots`` [P] a preview of rows ``is_row`` decides.

    Masked ones and, where tokens are edited, all others that are neither prompt nor pinned.
    """
    if table.has_random_canvases:
        return is_row
    is_open: Flags = table.masked[slots]
    is_editing = table.is_editing[slots]
    if is_editing.any():
        is_response = np.arange(is_row.shape[1]) >= table.first_response[slots][:, None]
        is_free = is_row & is_response & ~table.pinned[slots] & ~table.is_certified(slots)
        is_open |= is_editing[:, None] & is_free
    return is_open
