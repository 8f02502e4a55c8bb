"""Who runs in the next round and with how much: prompt chunks, commits, previews.

Knows the slot table and memory; knows nothing of tensors or results.
"""

from typing import NamedTuple

import numpy as np

from blockdiff.core import Phase
from blockdiff.pages import NO_SNAPSHOT
from blockdiff.scheduler.arrays import Flags, Ints
from blockdiff.scheduler.memory import Memory
from blockdiff.scheduler.prefill import share_budget
from blockdiff.scheduler.reuse import Reuse
from blockdiff.scheduler.table import SlotState, SlotTable


class Chosen(NamedTuple):
    """Slots that run: prompt chunks (and whether each is the last), commits, previews."""

    prefills: Ints
    chunks: Ints
    is_last: Flags
    commits: Ints
    previews: Ints


class Segments(NamedTuple):
    """One array line per segment [S], writing ones first, then previews."""

    slots: Ints
    lengths: Ints
    contexts: Ints
    phases: Ints
    snapshots: Ints
    decides_last_row: Flags


def choose(table: SlotTable, memory: Memory, reuse: Reuse, budget: int) -> Chosen:
    """Everything that can run now: prompt chunks, waiting commits, one preview per canvas.

    May suspend slots that come last by rank, when pages run out.
    """
    newcomers = _newcomers(table, memory, reuse)
    remaining = table.final[newcomers] - table.written[newcomers]
    granules, priorities = table.prefill_granule[newcomers], table.urgency(newcomers)
    chunks = share_budget(remaining, granules, priorities, budget)
    newcomers, chunks = newcomers[chunks > 0], chunks[chunks > 0]

    decoding = np.flatnonzero(table.state == SlotState.DECODE)
    is_behind = table.final[decoding] > table.written[decoding]
    writers = np.concatenate([newcomers, decoding[is_behind]])
    ends = np.concatenate([table.written[newcomers] + chunks, table.final[decoding[is_behind]]])
    has_room = memory.reserve(writers, ends)
    if memory.suspended or not has_room.all():
        reuse.suspend(memory.suspended)
        stopped = np.concatenate([writers[~has_room], np.array(memory.suspended, np.int64)])
        is_served = has_room[: len(newcomers)]
        newcomers, chunks = newcomers[is_served], chunks[is_served]
        decoding = decoding[~np.isin(decoding, stopped)]
    is_last = table.written[newcomers] + chunks == table.final[newcomers]
    # A prompt whose last chunk runs now is previewed (or decided) in the same round.
    opened = np.concatenate([decoding, newcomers[is_last]])
    return Chosen(
        prefills=newcomers,
        chunks=chunks,
        is_last=is_last,
        commits=decoding[table.final[decoding] > table.written[decoding]],
        previews=opened[~table.is_autoregressive[opened]],
    )


def _newcomers(table: SlotTable, memory: Memory, reuse: Reuse) -> Ints:
    """Slots that write their prompts, in order of rank; without those that had better wait."""
    newcomers = table.by_rank(np.flatnonzero(table.state == SlotState.PREFILL))
    if not len(newcomers):
        return newcomers
    newcomers = newcomers[memory.may_start(newcomers, reuse.pages_in_use(newcomers))]
    waiting = reuse.look_up(newcomers)
    if waiting:
        newcomers = newcomers[~np.isin(newcomers, waiting)]
    # Some are complete already.
    incomplete: Ints = newcomers[table.state[newcomers] == SlotState.PREFILL]
    return incomplete


def split(table: SlotTable, reuse: Reuse, chosen: Chosen) -> Segments:
    """The segments of a round: prompts first, then commits, then previews."""
    prefills, chunks, is_last, commits, previews = chosen
    starts = table.written[np.concatenate([prefills, commits])]
    kinds = np.array([Phase.PREFILL, Phase.COMMIT], np.int64)
    writing = Segments(
        slots=np.concatenate([prefills, commits]),
        lengths=np.concatenate([chunks, table.final[commits] - table.written[commits]]),
        contexts=starts,
        phases=np.repeat(kinds, [len(prefills), len(commits)]),
        snapshots=np.full(len(starts), NO_SNAPSHOT, np.int64),
        decides_last_row=np.concatenate(
            [is_last & table.is_autoregressive[prefills], table.is_autoregressive[commits]]
        ),
    )
    if reuse.keeps_states:
        writing = _cut(table, reuse, writing)
    looking = Segments(
        slots=previews,
        lengths=table.block_length[previews],
        contexts=table.block_start[previews],
        phases=np.full(len(previews), Phase.PREVIEW, np.int64),
        snapshots=np.full(len(previews), NO_SNAPSHOT, np.int64),
        decides_last_row=np.zeros(len(previews), np.bool_),
    )
    return Segments(*(np.concatenate(both) for both in zip(writing, looking, strict=True)))


def _cut(table: SlotTable, reuse: Reuse, whole: Segments) -> Segments:
    """Segments cut where the state in between is to be kept for others."""
    lines = []
    for number in range(len(whole.slots)):
        slot, start = int(whole.slots[number]), int(whole.contexts[number])
        end = start + int(whole.lengths[number])
        for place in reuse.cuts(slot, start, end):
            line = reuse.take_line(slot, place)
            if line != NO_SNAPSHOT:
                lines.append((number, place, line))
    if not lines:
        return whole
    owners, places, kept = np.array(lines, np.int64).T
    whole_ends = whole.contexts + whole.lengths
    is_end = places == whole_ends[owners]
    # Every segment ends at its own end and at the places inside it.
    numbers = np.concatenate([np.arange(len(whole.slots)), owners[~is_end]])
    ends = np.concatenate([whole_ends, places[~is_end]])
    snapshots = np.concatenate([whole.snapshots, kept[~is_end]])
    snapshots[owners[is_end]] = kept[is_end]
    order = np.lexsort((ends, numbers))
    numbers, ends, snapshots = numbers[order], ends[order], snapshots[order]
    is_first = np.concatenate([[True], numbers[1:] != numbers[:-1]])
    starts = np.where(is_first, whole.contexts[numbers], np.roll(ends, 1))
    return Segments(
        slots=whole.slots[numbers],
        lengths=ends - starts,
        contexts=starts,
        phases=whole.phases[numbers],
        snapshots=snapshots,
        decides_last_row=whole.decides_last_row[numbers] & (ends == whole_ends[numbers]),
    )
