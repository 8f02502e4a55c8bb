"""One round, as flat arrays: which rows run and which of them are decided.

Built from the slot table without a Python loop over rows. Knows nothing of torch or results.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from blockdiff.core import Phase
from blockdiff.scheduler.prefill import share_budget
from blockdiff.scheduler.table import Flags, Ints, SlotState, SlotTable


@dataclass(frozen=True)
class RoundPlan:
    """R rows in S segments, L decided rows in G groups (one group per canvas or single token)."""

    token_ids: Ints
    positions: Ints
    segment_starts: Ints
    phases: Ints
    slots: Ints
    contexts: Ints
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

    @property
    def running_slots(self) -> Ints:
        return np.unique(self.slots)


class _Chosen(NamedTuple):
    """Slots that run: prompt chunks (and whether each is the last), commits, previews."""

    prefills: Ints
    chunks: Ints
    is_last: Flags
    commits: Ints
    previews: Ints


class _Segments(NamedTuple):
    """One array line per segment [S], prefills first, then commits, then previews."""

    slots: Ints
    lengths: Ints
    contexts: Ints
    phases: Ints
    decides_last_row: Flags


def build_plan(table: SlotTable, budget: int) -> RoundPlan | None:
    """Everything that can run now: prompt chunks, waiting commits, one preview per canvas."""
    chosen = _choose(table, budget)
    if not len(chosen.prefills) + len(chosen.commits) + len(chosen.previews):
        return None
    return _flatten(table, chosen, _join(table, chosen))


def _choose(table: SlotTable, budget: int) -> _Chosen:
    newcomers = np.flatnonzero(table.state == SlotState.PREFILL)
    newcomers = newcomers[np.argsort(table.arrival[newcomers], kind="stable")]
    remaining = table.prefill_target[newcomers] - table.prefilled[newcomers]
    chunks = share_budget(remaining, table.prefill_granule[newcomers], budget)
    is_chosen = chunks > 0
    prefills, is_last = newcomers[is_chosen], (chunks == remaining)[is_chosen]

    decoding = np.flatnonzero(table.state == SlotState.DECODE)
    # A prompt whose last chunk runs now is previewed (or decided) in the same round.
    opened = np.concatenate([decoding, prefills[is_last]])
    return _Chosen(
        prefills=prefills,
        chunks=chunks[is_chosen],
        is_last=is_last,
        commits=decoding[table.pending_length[decoding] > 0],
        previews=opened[~table.is_autoregressive[opened]],
    )


def _join(table: SlotTable, chosen: _Chosen) -> _Segments:
    prefills, chunks, is_last, commits, previews = chosen
    counts = [len(prefills), len(commits), len(previews)]
    return _Segments(
        slots=np.concatenate([prefills, commits, previews]),
        lengths=np.concatenate(
            [chunks, table.pending_length[commits], table.block_length[previews]]
        ),
        contexts=np.concatenate(
            [table.prefilled[prefills], table.pending_start[commits], table.block_start[previews]]
        ),
        phases=np.repeat(np.array([Phase.PREFILL, Phase.COMMIT, Phase.PREVIEW], np.int64), counts),
        decides_last_row=np.concatenate(
            [
                is_last & table.is_autoregressive[prefills],
                table.is_autoregressive[commits],
                np.zeros(len(previews), np.bool_),
            ]
        ),
    )


def _flatten(table: SlotTable, chosen: _Chosen, segments: _Segments) -> RoundPlan:
    starts = np.concatenate([[0], np.cumsum(segments.lengths)])
    row_segments = np.repeat(np.arange(len(segments.slots)), segments.lengths)
    row_slots = segments.slots[row_segments]
    row_places = np.arange(starts[-1]) - starts[row_segments]
    first_commit = starts[len(chosen.prefills)]
    first_preview = starts[len(chosen.prefills) + len(chosen.commits)]
    written, seen = slice(first_commit, first_preview), slice(first_preview, None)

    is_decided = np.zeros(starts[-1], np.bool_)
    is_decided[starts[1:][segments.decides_last_row] - 1] = True
    is_decided[seen] = _is_open(table, row_slots[seen], row_places[seen])
    logit_rows = np.flatnonzero(is_decided)
    decided_slots = row_slots[logit_rows]
    is_single = table.is_autoregressive[decided_slots]
    has_group = segments.decides_last_row | (segments.phases == Phase.PREVIEW)
    group_of_segment = np.cumsum(has_group) - 1
    return RoundPlan(
        token_ids=np.concatenate(
            [
                *_prompt_rows(table, chosen),
                table.pending[row_slots[written], row_places[written]],
                table.canvas[row_slots[seen], row_places[seen]],
            ]
        ),
        positions=segments.contexts[row_segments] + row_places,
        segment_starts=starts,
        phases=segments.phases,
        slots=segments.slots,
        contexts=segments.contexts,
        logit_rows=logit_rows,
        group_slots=segments.slots[has_group],
        row_groups=group_of_segment[row_segments[logit_rows]],
        row_places=np.where(is_single, table.step[decided_slots], row_places[logit_rows]),
        prefill_slots=chosen.prefills,
        prefill_chunks=chosen.chunks,
        commit_slots=chosen.commits,
        preview_slots=chosen.previews,
    )


def _is_open(table: SlotTable, slots: Ints, places: Ints) -> Flags:
    """Which canvas rows a preview decides: masked ones and, where tokens are edited, all others
    that are neither prompt nor pinned."""
    if table.has_random_canvases:
        return np.ones(len(slots), np.bool_)
    is_response = places >= table.first_response[slots]
    is_free = is_response & ~table.pinned[slots, places]
    decided: Flags = table.masked[slots, places] | (table.is_editing[slots] & is_free)
    return decided


def _prompt_rows(table: SlotTable, chosen: _Chosen) -> list[Ints]:
    starts = table.prefilled[chosen.prefills]
    return [
        table.prompts[slot][start : start + chunk]
        for slot, start, chunk in zip(chosen.prefills, starts, chosen.chunks, strict=True)
    ]
