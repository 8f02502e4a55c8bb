"""One round, as flat arrays: which rows run and which of them are decided.

Built from chosen segments without a Python loop over rows. Knows nothing of torch or results.
"""

from dataclasses import dataclass

import numpy as np

from blockdiff.core import Phase
from blockdiff.pages import CacheWork
from blockdiff.scheduler.choice import Chosen, Segments
from blockdiff.scheduler.memory import Memory
from blockdiff.scheduler.table import Flags, Ints, SlotTable


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
    starts = np.concatenate([[0], np.cumsum(segments.lengths)])
    row_segments = np.repeat(np.arange(len(segments.slots)), segments.lengths)
    row_slots = segments.slots[row_segments]
    row_places = np.arange(starts[-1]) - starts[row_segments]
    positions = segments.contexts[row_segments] + row_places
    is_preview = segments.phases == Phase.PREVIEW
    first_preview = starts[np.argmax(is_preview)] if is_preview.any() else starts[-1]
    written, seen = slice(0, first_preview), slice(first_preview, None)

    is_decided = np.zeros(starts[-1], np.bool_)
    is_decided[starts[1:][segments.decides_last_row] - 1] = True
    is_decided[seen] = _is_open(table, row_slots[seen], row_places[seen])
    logit_rows = np.flatnonzero(is_decided)
    decided_slots = row_slots[logit_rows]
    is_single = table.is_autoregressive[decided_slots]
    has_group = segments.decides_last_row | is_preview
    group_of_segment = np.cumsum(has_group) - 1
    return RoundPlan(
        token_ids=np.concatenate(
            [
                table.sequences[row_slots[written], positions[written]].astype(np.int64),
                table.canvas[row_slots[seen], row_places[seen]],
            ]
        ),
        positions=positions,
        segment_starts=starts,
        phases=segments.phases,
        slots=segments.slots,
        contexts=segments.contexts,
        pages=_pages(memory, segments),
        snapshots=segments.snapshots,
        logit_rows=logit_rows,
        group_slots=segments.slots[has_group],
        row_groups=group_of_segment[row_segments[logit_rows]],
        row_places=np.where(is_single, table.step[decided_slots], row_places[logit_rows]),
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


def _is_open(table: SlotTable, slots: Ints, places: Ints) -> Flags:
    """Which canvas rows a preview decides: masked ones and, where tokens are edited, all others
    that are neither prompt nor pinned."""
    if table.has_random_canvases:
        return np.ones(len(slots), np.bool_)
    is_response = places >= table.first_response[slots]
    is_free = is_response & ~table.pinned[slots, places]
    decided: Flags = table.masked[slots, places] | (table.is_editing[slots] & is_free)
    return decided
