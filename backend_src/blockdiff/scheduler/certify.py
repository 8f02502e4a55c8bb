"""Certified prefixes: what of the open blocks of constrained requests their constraints have taken.

Tokens inside a block are accepted in any order, but a constraint reads from left to right. So those
after the first open place of such a block are proposals until the constraint reaches them; the
first that it refuses is opened again, and all after it. Knows the slot table; knows nothing of
grammars, of how tokens are chosen or of what ends a request.
"""

import logging
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blockdiff.constraints.base import Bits, Constraint
from blockdiff.errors import RequestError
from blockdiff.scheduler.arrays import Ints
from blockdiff.scheduler.plan import RoundPlan
from blockdiff.scheduler.table import SlotTable

logger = logging.getLogger(__name__)

NO_TOKEN_LEFT = "guide, bad_strings: no token may follow the output so far, which must not end here"


class Masks(NamedTuple):
    """What some decided rows of a round may choose."""

    rows: Ints
    """[K], ascending: the first open place of each constrained block."""
    bits: Bits
    """[K, ceil(V / 32)], see ``Constraint.allowed``."""

    def within(self, start: int, end: int) -> tuple[Ints, npt.NDArray[np.int32]]:
        """Those of rows from ``start`` to ``end``, numbered from there, and their words."""
        part = slice(*np.searchsorted(self.rows, [start, end]).tolist())
        return self.rows[part] - start, self.bits[part].view(np.int32)


@dataclass
class _Certified:
    constraint: Constraint
    has_ended: bool = False
    error: str = ""


class Certifier:
    """Constraints of running requests by slot."""

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._running: dict[int, _Certified] = {}

    def open(self, slot: int, constraint: Constraint | None) -> None:
        """A request has taken ``slot``, with its block open."""
        if constraint is None:
            return
        self._running[slot] = _Certified(constraint)
        self._table.is_constrained[slot] = True
        self._table.certified[slot] = self._table.prompt_length[slot]
        self.advance(np.array([slot]))

    def close(self, slot: int) -> None:
        """The request in ``slot`` has ended."""
        if self._running.pop(slot, None) is not None:
            self._table.is_constrained[slot] = False

    def error(self, slot: int) -> str:
        """Why the request in ``slot`` cannot go on; empty: it can."""
        own = self._running.get(slot)
        return "" if own is None else own.error

    def has_ended(self, slot: int) -> bool:
        """Whether the output of ``slot`` ends with its certified prefix."""
        own = self._running.get(slot)
        return own is not None and own.has_ended

    def is_complete(self, slot: int) -> bool:
        """Whether the output of ``slot`` may end with its certified prefix."""
        own = self._running.get(slot)
        return own is None or own.constraint.is_complete

    def advance(self, slots: Ints) -> None:
        """Certify what can be in the open blocks of ``slots`` [N], and open what is refused."""
        if not self._running:
            return
        for slot in slots[self._table.is_constrained[slots]].tolist():
            own = self._running[slot]
            try:
                self._advance(slot, own)
            except Exception as error:  # foreign code: must not take other requests down
                own.error = self._told(error)

    def refuse(self, slots: Ints) -> None:
        """Open again what cannot be certified of the blocks of ``slots`` [N], for others to look at
        the rest before it is; random canvases are left alone."""
        if not self._running or self._table.has_random_canvases:
            return
        for slot in slots[self._table.is_constrained[slots]].tolist():
            own = self._running[slot]
            if not (own.error or own.has_ended):
                try:
                    self._refuse(slot, own)
                except Exception as error:  # foreign code, as above
                    own.error = self._told(error)

    def _refuse(self, slot: int, own: _Certified) -> None:
        table = self._table
        first = int(table.certified[slot] - table.block_start[slot])
        is_open = table.masked[slot, first : int(table.block_length[slot])]
        count = int(is_open.argmax()) if is_open.any() else len(is_open)
        tokens = table.canvas[slot, first : first + count].tolist()
        end, _ = self._cut(slot, first, tokens)
        place = first + own.constraint.check(tokens[: end - first])
        # what is given may be taken back by then
        if place < end and not table.pinned[slot, place]:
            self._open_again(slot, place, own)

    def _told(self, error: Exception) -> str:
        if not isinstance(error, RequestError):
            logger.error("a constraint failed", exc_info=error)
        return str(error) or type(error).__name__

    def _advance(self, slot: int, own: _Certified) -> None:
        table = self._table
        start = int(table.block_start[slot])
        needed = int(min(table.block_length[slot], table.end_position[slot] - start))
        while not own.error:
            first = int(table.certified[slot]) - start
            open_places = np.flatnonzero(table.masked[slot, first:needed])
            end = first + int(open_places[0]) if len(open_places) else needed
            tokens = [] if own.has_ended else table.canvas[slot, first:end].tolist()
            end, is_eos = self._cut(slot, first, tokens)
            taken = own.constraint.push(tokens[: end - first])
            place = first + taken
            if is_eos and place == end and own.constraint.is_complete:
                table.certified[slot] = start + place + 1
                return
            table.certified[slot] = start + place
            own.has_ended |= own.constraint.must_end
            if place < first + len(tokens):
                self._open_again(slot, place, own)
                return
            if own.has_ended or not self._fill(slot, place, needed, own.constraint.forced()):
                return

    def _cut(self, slot: int, first: int, tokens: list[int]) -> tuple[int, bool]:
        """Place where ``tokens``, from place ``first`` on, end; whether an end token does it."""
        table, eos = self._table, self._table.eos_ids[slot]
        ending = int(table.first_ending(np.array([slot]))[0])
        is_end = np.isin(tokens, eos[eos >= 0]) & (np.arange(len(tokens)) + first >= ending)
        if not is_end.any():
            return first + len(tokens), False
        return first + int(is_end.argmax()), True

    def _open_again(self, slot: int, place: int, own: _Certified) -> None:
        """The tokens from ``place`` on are no longer decided."""
        table, length = self._table, int(self._table.block_length[slot])
        if table.pinned[slot, place] and not own.has_ended:
            position = int(table.block_start[slot]) + place - int(table.prompt_length[slot])
            own.error = (
                f"pinned: token {table.canvas[slot, place]} at place {position} cannot follow "
                "the output before it by the guide or bad_strings"
            )
            return
        if table.has_random_canvases:
            table.begin_canvas_again(slot, place)
            return
        places = np.arange(place, length)
        places = places[~table.pinned[slot, places]]
        table.canvas[slot, places] = table.mask_token_id
        table.log_probs[slot, places] = 0.0
        table.masked[slot, places] = True

    def _fill(self, slot: int, place: int, end: int, forced: list[int]) -> bool:
        """Put ``forced`` tokens into the open places from ``place`` on; whether there are any."""
        table = self._table
        if table.is_autoregressive[slot]:
            return False
        is_open = table.masked[slot, place:end]
        count = int(is_open.argmin()) if not is_open.all() else len(is_open)
        count = min(count, len(forced))
        places = slice(place, place + count)
        table.canvas[slot, places] = forced[:count]
        table.log_probs[slot, places] = 0.0
        table.masked[slot, places] = False
        if table.has_random_canvases:
            table.pinned[slot, places] = True
        return count > 0

    def masks(self, plan: RoundPlan) -> Masks | None:
        """What the first open places of the plan's constrained blocks may hold; None: anything.

        Requests that cannot go on get no mask; ``error`` and ``has_ended`` say so.
        """
        groups = np.flatnonzero(self._table.is_constrained[plan.group_slots])
        rows, bits = [], []
        for group in groups.tolist():
            row = self._row(plan, group)
            found = None if row is None else self._mask(int(plan.group_slots[group]))
            if row is not None and found is not None:
                rows.append(row)
                bits.append(found)
        return Masks(np.array(rows, np.int64), np.stack(bits)) if rows else None

    def _row(self, plan: RoundPlan, group: int) -> int | None:
        table, slot = self._table, int(plan.group_slots[group])
        place = int(table.certified[slot] - table.block_start[slot])
        first, last = np.searchsorted(plan.row_groups, [group, group + 1])
        found = np.flatnonzero(plan.row_places[first:last] == place)
        return int(first + found[0]) if len(found) else None

    def _mask(self, slot: int) -> Bits | None:
        own, table = self._running[slot], self._table
        if own.has_ended or own.error:
            return None
        try:
            bits = own.constraint.allowed()
        except Exception as error:  # foreign code, as above
            own.error = self._told(error)
            return None
        place = int(table.certified[slot] - table.block_start[slot])
        eos = table.eos_ids[slot][table.eos_ids[slot] >= 0]
        may_end = own.constraint.is_complete
        is_early = place < int(table.first_ending(np.array([slot]))[0])
        bits = _changed(bits, eos, may_end and not is_early)
        bits = _changed(bits, np.array(table.never, np.int64), False)
        if not bits.any():
            own.has_ended = may_end
            own.error = "" if may_end else NO_TOKEN_LEFT
            return None
        return bits


def _changed(bits: Bits, token_ids: Ints, is_allowed: bool) -> Bits:
    """``bits`` with those of ``token_ids`` set so."""
    changed = bits.copy()
    for token in token_ids.tolist():
        bit = np.uint32(1 << token % 32)
        if is_allowed:
            changed[token // 32] |= bit
        else:
            changed[token // 32] &= ~bit
    return changed
