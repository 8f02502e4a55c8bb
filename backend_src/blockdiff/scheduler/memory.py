"""Which pages each slot holds: reserving what a round writes, taking back what it must, sharing.

When pages run out, prefixes kept for later go first, then the pages of the request that comes last
by rank; it writes its tokens again when there is room. Knows nothing of tensors or rounds.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from blockdiff.pages import NO_SNAPSHOT, CacheWork, count_pages
from blockdiff.scheduler.arrays import Flags, Ints
from blockdiff.scheduler.counters import Counters, PageCounts
from blockdiff.scheduler.pages import PagePool
from blockdiff.scheduler.prefix import PrefixTree, Unit
from blockdiff.scheduler.snapshots import SnapshotLines
from blockdiff.scheduler.table import SlotTable


@dataclass(frozen=True)
class MemoryRules:
    """What there is, and how it may be shared."""

    pages: int  # numbered from 0; the next number is that of the empty page
    page_length: int
    pages_per_slot: int  # of the longest request
    snapshots: int = 0  # state lines beyond the slots' own
    snapshot_interval: int = 512  # tokens
    has_states: bool = False  # a prefix can be taken over only where a state was kept
    keeps_prefixes: bool = True


@dataclass
class PendingWork:
    """What has to be done to the caches before the next forward; numbers only."""

    cleared: set[int] = field(default_factory=set)
    copies: dict[int, int] = field(default_factory=dict)  # source page by target page
    resets: set[int] = field(default_factory=set)
    restores: dict[int, int] = field(default_factory=dict)  # snapshot line by slot

    def forget(self, slot: int) -> None:
        """The slot has been given up."""
        self.resets.discard(slot)
        self.restores.pop(slot, None)

    def as_arrays(self) -> CacheWork:
        return CacheWork(
            copy_from=_array(self.copies.values()),
            copy_to=_array(self.copies),
            cleared=_array(self.cleared),
            reset_slots=_array(self.resets),
            restore_from=_array(self.restores.values()),
            restore_to=_array(self.restores),
        )


def _array(numbers: Collection[int]) -> Ints:
    return np.fromiter(numbers, np.int64, len(numbers))


class Memory:
    """Pages by slot. ``tables`` [slots, pages per slot] names them in order of position."""

    def __init__(self, table: SlotTable, rules: MemoryRules, counters: Counters) -> None:
        self.rules = rules
        self.pool = PagePool(rules.pages)
        self.lines: SnapshotLines[Unit] = SnapshotLines(
            table.num_slots, rules.snapshots, _lose_line
        )
        self.tree = PrefixTree(self.pool, self.lines)
        # Where a slot holds nothing, its table names a page that stays empty.
        self.tables: Ints = np.full((table.num_slots, rules.pages_per_slot), rules.pages, np.int64)
        self.held: Ints = np.zeros(table.num_slots, np.int64)
        # The kept units that a slot shares, from its first token on.
        self.paths: list[list[Unit]] = [[] for _ in range(table.num_slots)]
        self.pending = PendingWork()
        self.suspended: list[int] = []
        self._table = table
        self._counters = counters

    def pages_for(self, tokens: Ints) -> Ints:
        """Pages that so many tokens fill or begin."""
        return count_pages(tokens, self.rules.page_length)

    @property
    def available(self) -> int:
        """Pages that can be had without taking any from a request."""
        return self.pool.free + self.tree.idle_pages

    @property
    def page_counts(self) -> PageCounts:
        """Of the moment."""
        return PageCounts(self.pool.total, self.pool.free, self.tree.idle_pages)

    def take_work(self) -> CacheWork | None:
        """What the caches need before the next forward, once; None: nothing."""
        work, self.pending = self.pending.as_arrays(), PendingWork()
        return None if work.is_empty else work

    def give(self, slot: int, pages: Ints) -> None:
        """Put ``pages``, which count ``slot`` as a holder already, at the end of its table."""
        start = int(self.held[slot])
        self.tables[slot, start : start + len(pages)] = pages
        self.held[slot] += len(pages)

    def take_copies(self, slot: int, pages: Ints) -> Ints:
        """Free pages at the end of ``slot``'s table that become copies of ``pages`` [N]."""
        copies = self.pool.take(len(pages))
        self.pending.cleared.difference_update(copies.tolist())
        self.pending.copies.update(zip(copies.tolist(), pages.tolist(), strict=True))
        self.give(slot, copies)
        return copies

    def held_pages(self, slot: int) -> Ints:
        return self.tables[slot, : self.held[slot]]

    def reserve(self, slots: Ints, ends: Ints) -> Flags:
        """Pages for the first ``ends`` [N] tokens of ``slots`` [N]; False where there are none now.

        May suspend slots, among them others than these: ``suspended`` says which.
        """
        self.suspended = []
        missing = self.pages_for(ends) - self.held[slots]
        wanting = np.flatnonzero(missing > 0)
        total = int(missing[wanting].sum())
        if not total:
            return np.ones(len(slots), np.bool_)
        if self.tree.make_free(total):
            self._take(slots[wanting], missing[wanting])
            return np.ones(len(slots), np.bool_)
        return self._reserve_by_rank(slots, ends)

    def may_start(self, newcomers: Ints, spared: Ints) -> Flags:
        """Of ``newcomers`` [N], in order of rank, those for whose tokens there is room.

        One that has begun goes on. The others may begin only with room for all that is final of
        them, but for ``spared`` [N] pages that others hold anyway, and a page more for everyone who
        runs: or they would be suspended and begun again and again.
        """
        table = self._table
        needed = self.pages_for(table.final[newcomers] + table.block_length[newcomers])
        needed = np.minimum(needed, self.rules.pages) - self.held[newcomers] - spared
        upto = np.cumsum(np.maximum(needed, 0))
        allowed: Flags = self.held[newcomers] > 0
        allowed |= upto + int((self.held > 0).sum()) <= self.available
        if not allowed.all():
            after = self._pages_after(newcomers)
            is_first = np.arange(len(newcomers)) == 0
            allowed |= ((after > 0) | is_first) & (upto <= self.available + after)
        return allowed

    def _pages_after(self, slots: Ints) -> Ints:
        """Pages [N] held by the slots that come after each of ``slots`` [N] by rank."""
        ranked = self._table.by_rank(np.union1d(np.flatnonzero(self.held), slots))
        held = self.held[ranked]
        after = np.zeros_like(self.held)
        after[ranked] = held[::-1].cumsum()[::-1] - held
        return after[slots]

    def _take(self, slots: Ints, counts: Ints) -> None:
        """``counts`` [N] free pages for each of ``slots`` [N], which are distinct."""
        pages = self.pool.take(int(counts.sum()))
        self.pending.cleared.update(pages.tolist())
        owners = np.repeat(slots, counts)
        firsts = np.repeat(np.cumsum(counts) - counts, counts)
        self.tables[owners, self.held[owners] + np.arange(len(pages)) - firsts] = pages
        self.held[slots] += counts

    def _reserve_by_rank(self, slots: Ints, ends: Ints) -> Flags:
        end_of = dict(zip(slots.tolist(), ends.tolist(), strict=True))
        has_room = dict.fromkeys(end_of, False)
        for slot in self._table.by_rank(slots).tolist():
            if slot in self.suspended:
                continue
            here = np.array([slot])
            missing = self.pages_for(np.array([end_of[slot]])) - self.held[here]
            if missing[0] > 0:
                if not self._make_free(slot, int(missing[0])):
                    continue
                self._take(here, missing)
            has_room[slot] = True
        # Who was served keeps what it got: only slots after it by rank are suspended.
        return np.array([has_room[slot] for slot in slots.tolist()], np.bool_)

    def _make_free(self, slot: int, count: int) -> bool:
        """Free ``count`` pages for ``slot`` at the cost of prefixes and of slots after it."""
        if self.pool.total - self._pages_up_to(slot) < count:
            return False
        while not self.tree.make_free(count):
            victim = self._last_after(slot)
            if victim is None:
                return False
            self.suspend(victim)
        return True

    def _pages_up_to(self, slot: int) -> int:
        """How many pages ``slot`` and those before it by rank hold, shared ones counted once."""
        ranked = self._table.by_rank(np.union1d(np.flatnonzero(self.held), [slot])).tolist()
        before = ranked[: ranked.index(slot) + 1]
        return len(np.unique(np.concatenate([self.held_pages(one) for one in before])))

    def _last_after(self, slot: int) -> int | None:
        """The slot with pages that comes last by rank, if that is after ``slot``."""
        holders = np.flatnonzero(self.held > 0)
        ranked = self._table.by_rank(np.union1d(holders, [slot]))
        last = int(ranked[-1])
        return None if last == slot else last

    def suspend(self, slot: int) -> None:
        """Take all pages of ``slot``; its tokens will be written again."""
        self._counters.suspensions += 1
        self.suspended.append(slot)
        self.restart(slot)

    def restart(self, slot: int) -> None:
        """``slot`` holds nothing any more and begins anew with the first of its tokens."""
        self.release(slot)
        self._table.suspend(slot)

    def release(self, slot: int) -> None:
        """``slot`` holds nothing any more."""
        self.pool.release(self.held_pages(slot))
        self.tables[slot, : self.held[slot]] = self.rules.pages
        self.held[slot] = 0
        self.tree.let_go(self.paths[slot])
        self.paths[slot] = []
        self.pending.forget(slot)


def _lose_line(unit: Unit) -> None:
    unit.line = NO_SNAPSHOT
