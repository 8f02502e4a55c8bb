"""Prefix reuse: what newcomers need not compute, whom they wait for, which states are kept.

Knows the slot table and the pages; knows nothing of tensors, models or rounds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from blockdiff.pages import NO_SNAPSHOT, count_pages
from blockdiff.scheduler.arrays import Ints
from blockdiff.scheduler.counters import Counters
from blockdiff.scheduler.memory import Memory
from blockdiff.scheduler.prefix import Unit, first_digest, next_digest
from blockdiff.scheduler.table import SlotState, SlotTable

# Kept units that a prompt is compared with token by token, to copy the part they share.
MOST_COMPARED = 16


@dataclass
class _Record:
    """What prefix reuse knows of the request in one slot."""

    unit: int  # tokens
    digests: list[bytes]  # the first is that of the empty prefix
    wanted: set[int] = field(default_factory=set)
    """Places where others would go on from this request's state."""
    taken: dict[int, int] = field(default_factory=dict)
    """Snapshot lines being written, by place."""
    is_first_try: bool = True
    """False: the request looks for tokens again that it has had before."""


class Reuse:
    """Prefix reuse of one engine; does nothing where the rules say so."""

    def __init__(self, table: SlotTable, memory: Memory, counters: Counters) -> None:
        self._table = table
        self._memory = memory
        self._tree = memory.tree
        rules = memory.rules
        self.is_on = rules.keeps_prefixes and (not rules.has_states or rules.snapshots > 0)
        self.keeps_states = self.is_on and rules.has_states
        self._counters = counters
        self._records: dict[int, _Record] = {}
        # Units that a newcomer is about to commit, so that others need not.
        self._claims: dict[bytes, int] = {}

    def open(self, slot: int) -> None:
        """A request has taken ``slot``."""
        self._memory.pending.resets.add(slot)
        if self.is_on:
            granule = int(self._table.prefill_granule[slot])
            unit = math.lcm(self._memory.rules.page_length, granule)
            self._records[slot] = _Record(unit, [first_digest(granule)])
            self._counters.queried_tokens += int(self._table.final[slot])

    def close(self, slot: int) -> None:
        """The request in ``slot`` has ended."""
        self._memory.release(slot)
        record = self._records.pop(slot, None)
        if record is None:
            return
        for line in record.taken.values():
            self._memory.lines.give_back(line)
        for digest in record.digests:
            if self._claims.get(digest) == slot:
                del self._claims[digest]

    def suspend(self, slots: list[int]) -> None:
        """``slots`` have lost their pages: their states have to be built from nothing again."""
        self._memory.pending.resets.update(slots)
        for slot in slots:
            record = self._records.get(slot)
            if record is not None:
                for line in record.taken.values():
                    self._memory.lines.give_back(line)
                record.taken = {}
                record.is_first_try = False

    def pages_in_use(self, newcomers: Ints) -> Ints:
        """Pages [N] of running requests that ``newcomers`` [N] would share from their start."""
        counts = np.zeros_like(newcomers)
        for number, slot in enumerate(newcomers.tolist()):
            if self.is_on and not self._memory.held[slot]:
                found = self._usable(self._tree.find(self._digests(slot)[1:]))
                counts[number] = sum(len(unit.pages) for unit in found if unit.users)
        return counts

    def look_up(self, newcomers: Ints) -> list[int]:
        """Give ``newcomers`` [N], in order of rank, what is kept of their tokens.

        Returns those that should wait, because one before them is computing what they need next.
        """
        if not self.is_on:
            return []
        return [slot for slot in newcomers.tolist() if self._look_up(slot)]

    def _look_up(self, slot: int) -> bool:
        table, record, path = self._table, self._records[slot], self._memory.paths[slot]
        if table.written[slot] != len(path) * record.unit:
            return False  # in the middle of a unit
        digests = self._digests(slot)
        self._take_over(slot, self._tree.find(digests[len(path) + 1 :]))
        following = digests[len(path) + 1 :]
        leader = self._claims.get(following[0]) if following else None
        if leader is not None and leader != slot and self._waits_for(slot, leader):
            self._note_branch(leader, digests)
            return True
        if leader != slot:
            self._claims.update(dict.fromkeys(following, slot))
        self._copy_part(slot)
        if table.written[slot] == table.final[slot]:
            table.state[slot] = SlotState.DECODE
        return False

    def _last(self, slot: int) -> int:
        """How many tokens of ``slot`` may be taken over."""
        # A single token is decided by the row before it, which has to be computed.
        return int(self._table.final[slot]) - int(self._table.is_autoregressive[slot])

    def _digests(self, slot: int) -> list[bytes]:
        return self._known_digests(slot, self._last(slot) // self._records[slot].unit)

    def _known_digests(self, slot: int, units: int) -> list[bytes]:
        """Names of the first ``units`` units of ``slot``'s final tokens, after the empty one's."""
        record, tokens = self._records[slot], self._table.sequences[slot]
        for number in range(len(record.digests) - 1, units):
            content = tokens[number * record.unit : (number + 1) * record.unit]
            record.digests.append(next_digest(record.digests[-1], content))
        return record.digests[: units + 1]

    def _take_over(self, slot: int, found: list[Unit]) -> None:
        memory, record, path = self._memory, self._records[slot], self._memory.paths[slot]
        usable = self._usable(found)
        if len(found) > len(usable):
            # The request leaves what is kept there; the next one may go on from this state.
            record.wanted.add((len(path) + len(found)) * record.unit)
        if not usable:
            return
        for unit in usable:
            self._tree.hold(unit)
        pages = np.concatenate([unit.pages for unit in usable])
        memory.pool.share(pages)
        memory.give(slot, pages)
        path.extend(usable)
        self._advance(slot, len(path) * record.unit)
        if self.keeps_states:
            memory.pending.restores[slot] = usable[-1].line
            memory.lines.use(usable[-1].line)

    def _usable(self, found: list[Unit]) -> list[Unit]:
        """Units of one prefix, in order, up to the last after which one can go on."""
        if not self.keeps_states:
            return found
        with_state = [number for number, unit in enumerate(found) if unit.line != NO_SNAPSHOT]
        return found[: with_state[-1] + 1] if with_state else []

    def _advance(self, slot: int, place: int) -> None:
        if self._records[slot].is_first_try:
            self._counters.hit_tokens += place - int(self._table.written[slot])
        self._table.written[slot] = place

    def _waits_for(self, slot: int, leader: int) -> bool:
        table = self._table
        if table.state[leader] != SlotState.PREFILL:
            return False
        return int(table.by_rank(np.array([leader, slot]))[0]) == leader

    def _note_branch(self, leader: int, digests: list[bytes]) -> None:
        """Have ``leader`` keep its state where a request with ``digests`` leaves its way."""
        if not self.keeps_states:
            return
        record = self._records[leader]
        pairs = zip(record.digests, digests, strict=False)
        common = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
        if common is None:
            common = min(len(record.digests), len(digests))
        record.wanted.add((common - 1) * record.unit)

    def _copy_part(self, slot: int) -> None:
        """Copy the whole blocks that a kept unit shares with the next tokens of ``slot``."""
        memory, record, table = self._memory, self._records[slot], self._table
        granule, start = int(table.prefill_granule[slot]), int(table.written[slot])
        if self.keeps_states or granule >= record.unit:
            return
        ahead = table.sequences[slot, start : min(self._last(slot), start + record.unit)]
        best, shared = None, 0
        candidates = self._tree.followers(record.digests[len(memory.paths[slot])])
        for _, unit in zip(range(MOST_COMPARED), candidates, strict=False):
            same = unit.tokens[: len(ahead)] == ahead
            count = len(ahead) if same.all() else int(same.argmin())
            count -= count % granule
            if count > shared:
                best, shared = unit, count
        pages = count_pages(shared, memory.rules.page_length)
        if best is None or pages > memory.pool.free:
            return
        memory.take_copies(slot, best.pages[:pages])
        self._advance(slot, start + shared)

    def cuts(self, slot: int, start: int, end: int) -> list[int]:
        """Places in (start, end] after which the state of ``slot`` should be kept, in order."""
        if not self.keeps_states:
            return []
        return [place for place in self._places(slot, start, end) if self._is_missing(slot, place)]

    def _places(self, slot: int, start: int, end: int) -> Iterator[int]:
        record, table = self._records[slot], self._table
        every = -(-self._memory.rules.snapshot_interval // record.unit) * record.unit
        places = {place for place in record.wanted if start < place <= end}
        places.update(range((start // every + 1) * every, end + 1, every))
        if table.state[slot] == SlotState.PREFILL:
            final = int(table.final[slot])
            places.add(final - final % record.unit)
        return iter(sorted(place for place in places if start < place <= end))

    def _is_missing(self, slot: int, place: int) -> bool:
        record = self._records[slot]
        digest = self._known_digests(slot, place // record.unit)[-1]
        unit = self._tree.units.get(digest)
        return unit is None or unit.line == NO_SNAPSHOT

    def take_line(self, slot: int, place: int) -> int:
        """A state line for what ``slot`` holds after ``place`` tokens; NO_SNAPSHOT: none."""
        line = self._memory.lines.take()
        if line is None:
            return NO_SNAPSHOT
        self._records[slot].taken[place] = line
        return line

    def keep(self, slots: Ints) -> None:
        """Keep the units that ``slots`` [N] have committed; their results have proved sound."""
        if not self.is_on:
            return
        for slot in slots.tolist():
            record, path = self._records[slot], self._memory.paths[slot]
            units = int(self._table.written[slot]) // record.unit
            if units > len(path):
                self._keep(slot, units)

    def _keep(self, slot: int, units: int) -> None:
        record, path = self._records[slot], self._memory.paths[slot]
        digests = self._known_digests(slot, units)
        for number in range(len(path), units):
            path.append(self._keep_unit(slot, number, digests))
            self._claims.pop(digests[number + 1], None)
        for place in [place for place in record.taken if place <= units * record.unit]:
            unit, line = path[place // record.unit - 1], record.taken.pop(place)
            if unit.line == NO_SNAPSHOT:
                unit.line = line
                self._memory.lines.keep(line, unit)
            else:
                self._memory.lines.give_back(line)
        record.wanted = {place for place in record.wanted if place > units * record.unit}

    def _keep_unit(self, slot: int, number: int, digests: list[bytes]) -> Unit:
        memory, record = self._memory, self._records[slot]
        size = record.unit // memory.rules.page_length
        where = slice(number * size, (number + 1) * size)
        known = self._tree.units.get(digests[number + 1])
        if known is not None:
            # Somebody else was first: one copy is enough.
            memory.pool.release(memory.tables[slot, where])
            memory.pool.share(known.pages)
            memory.tables[slot, where] = known.pages
            self._tree.hold(known)
            return known
        tokens = self._table.sequences[slot, number * record.unit : (number + 1) * record.unit]
        pages = memory.tables[slot, where].copy()
        unit = Unit(digests[number], digests[number + 1], tokens.copy(), pages)
        self._tree.insert(unit)
        return unit
