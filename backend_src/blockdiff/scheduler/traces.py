"""What is kept of how the tokens of open blocks came about: the step of each, and its rivals.

Only for requests that ask. Knows the slot table's lines by number; knows nothing of devices.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blockdiff.scheduler.arrays import Flags, Floats, Ints, SlotArrays
from blockdiff.scheduler.decisions import Decisions

GIVEN = -1


class Trace(NamedTuple):
    """Of the tokens of one block, as ``BlockResult`` has it."""

    steps: tuple[int, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


NO_TRACE = Trace()


class Traces:
    """Of ``num_slots`` open blocks; arrays grow where they must."""

    def __init__(self, num_slots: int) -> None:
        self._steps: npt.NDArray[np.int32] = np.full((num_slots, 1), GIVEN, np.int32)
        self._top_ids: npt.NDArray[np.int32] = np.full((num_slots, 1, 1), GIVEN, np.int32)
        self._top_log_probs: Floats = np.zeros((num_slots, 1, 1), np.float32)

    def forget(self, slots: Ints) -> None:
        """The blocks of ``slots`` [N] begin."""
        self._steps[slots] = GIVEN
        self._top_ids[slots] = GIVEN

    def copy(self, slot: int, count: int) -> tuple[npt.NDArray[np.generic], ...]:
        """What is kept of the first ``count`` places of ``slot``, for ``restore``."""
        kept = (self._steps, self._top_ids, self._top_log_probs)
        return tuple(own[slot, :count].copy() for own in kept)

    def restore(self, slot: int, copied: tuple[npt.NDArray[np.generic], ...]) -> None:
        """Put back what ``copy`` gave."""
        kept = (self._steps, self._top_ids, self._top_log_probs)
        for own, before in zip(kept, copied, strict=True):
            own[slot, : len(before)] = before

    def forget_behind(self, slot: int, place: int) -> None:
        """The block of ``slot`` is open again from ``place`` on."""
        self._steps[slot, place:] = GIVEN
        self._top_ids[slot, place:] = GIVEN

    def _make_room(self, width: int, count: int) -> None:
        wider = max(width - self._top_ids.shape[1], 0)
        more = max(count - self._top_ids.shape[2], 0)
        if wider or more:
            self._steps = np.pad(self._steps, ((0, 0), (0, wider)), constant_values=GIVEN)
            room = ((0, 0), (0, wider), (0, more))
            self._top_ids = np.pad(self._top_ids, room, constant_values=GIVEN)
            self._top_log_probs = np.pad(self._top_log_probs, room)

    def record(self, table: SlotArrays, slots: Ints, groups: Ints, decisions: Decisions) -> None:
        """Note what ``decisions`` accept of ``groups`` [N], of which ``slots`` [G] are those.

        The table holds what was before, and the number of this step.
        """
        width, top = decisions.canvas.shape[1], decisions.top
        self._make_room(width, 1 if top is None else top.ids.shape[1])
        own = slots[groups]
        origins = self._move(own, groups, decisions)
        is_new = _newly_accepted(table, own, groups, origins, decisions)
        number = table.earlier_steps[own] + table.step[own]
        steps = np.broadcast_to(number[:, None], is_new.shape)
        lines, places = np.nonzero(is_new)
        self._steps[own[lines], places] = steps[lines, places]
        if top is None:
            return
        rows = np.full((len(slots), width), GIVEN)
        rows[top.groups, top.places] = np.arange(len(top.groups))
        row = rows[groups[lines], origins[lines, places]]
        lines, places, row = lines[row >= 0], places[row >= 0], row[row >= 0]
        count = top.ids.shape[1]
        self._top_ids[own[lines], places, :count] = top.ids[row]
        self._top_log_probs[own[lines], places, :count] = top.log_probs[row]

    def _move(self, own: Ints, groups: Ints, decisions: Decisions) -> Ints:
        """Where the tokens of ``own`` [N] were, [N, B]; what is kept of them follows them."""
        width = decisions.canvas.shape[1]
        if decisions.origins is None:
            return np.broadcast_to(np.arange(width), (len(own), width))
        origins = np.maximum(decisions.origins[groups], 0)
        lines = np.arange(len(own))[:, None]
        for kept in (self._steps, self._top_ids, self._top_log_probs):
            kept[own, :width] = kept[own][lines, origins]
        return origins

    def of(self, table: SlotArrays, slots: Ints, ends: Ints) -> list[Trace]:
        """Open blocks of ``slots`` [N] up to places ``ends`` [N], without prompts."""
        return [self._of(table, *pair) for pair in zip(slots.tolist(), ends.tolist(), strict=True)]

    def _of(self, table: SlotArrays, slot: int, end: int) -> Trace:
        part, count = slice(int(table.first_response[slot]), end), int(table.num_top[slot])
        steps: list[int] = self._steps[slot, part].tolist() if table.wants_steps[slot] else []
        if not count:
            return Trace(tuple(steps))
        ids = self._top_ids[slot, part, :count].tolist()
        log_probs = self._top_log_probs[slot, part, :count].tolist()
        top = (zip(*both, strict=True) for both in zip(ids, log_probs, strict=True))
        return Trace(tuple(steps), tuple(tuple(p for p in own if p[0] >= 0) for own in top))


def _newly_accepted(
    table: SlotArrays, own: Ints, groups: Ints, origins: Ints, decisions: Decisions
) -> Flags:
    """Places [N, B] that this step has filled or changed."""
    lines = np.arange(len(own))[:, None]
    was_open, before = table.masked[own][lines, origins], table.canvas[own][lines, origins]
    is_changed = was_open | (before != decisions.canvas[groups])
    if decisions.origins is not None:
        is_changed |= decisions.origins[groups] < 0
    is_new: Flags = is_changed & ~decisions.is_open[groups]
    return is_new
