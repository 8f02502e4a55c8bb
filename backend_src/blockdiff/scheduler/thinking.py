"""Keeps think blocks within their budgets: gives the tokens that end one at their exact place.

The end is given like any other token as soon as its place is known. If the model ends its block
before, what stood from that place on is open again. Knows nothing of text: a ``ThinkFinder`` says
where a think block begins and ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from blockdiff.scheduler.arrays import Ints
from blockdiff.scheduler.pins import NO_PINS, Pins
from blockdiff.scheduler.table import SlotTable


class ThinkFinder(Protocol):
    """Looks for the think block of one response as its tokens settle."""

    def push(self, token_ids: Sequence[int]) -> object:
        """Take the next tokens."""
        ...

    @property
    def first(self) -> int | None:
        """Number of the first token inside the block, from 0; None: none has begun."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether nothing that follows can be part of the block."""
        ...


@dataclass
class ThinkWatch:
    """The budget of one request. Filled by the engine, kept by ``ThinkBudgets``."""

    finder: ThinkFinder
    budget: int
    end_ids: tuple[int, ...]
    given: Ints | None = None
    """Positions of the end that is given; None: not known yet."""
    block: int = 0
    seen: int = 0
    """Places of block number ``block`` that ``finder`` has taken."""
    error: str = ""


class ThinkBudgets:
    """The watches of all requests that have a budget, by slot."""

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._watches: dict[int, ThinkWatch] = {}

    def open(self, slot: int, watch: ThinkWatch | None) -> None:
        """Begin with the request that ``slot`` has just been given."""
        if watch is None:
            return
        watch.seen = int(self._table.first_response[slot])
        self._watches[slot] = watch
        if self._give_end(slot, watch) is not None:
            self._table.pin(slot)

    def close(self, slot: int) -> None:
        self._watches.pop(slot, None)

    def error(self, slot: int) -> str:
        """Why the request in ``slot`` cannot go on; empty: it can."""
        watch = self._watches.get(slot)
        return "" if watch is None else watch.error

    def advance(self, slots: Ints) -> None:
        """Look at what is settled now of the blocks of ``slots`` [N]; may open them again."""
        watched = np.array([slot for slot in slots.tolist() if slot in self._watches], np.int64)
        if not len(watched):
            return
        ending = self._table.endings(watched)
        places = np.where(ending.eos < 0, ending.settled, ending.eos)
        for slot, place in zip(watched.tolist(), places.tolist(), strict=True):
            watch = self._watches[slot]
            try:
                self._advance(slot, place)
            except Exception as error:  # foreign code: must not take other requests down
                watch.error = f"thinking_budget: cannot detokenise ({error})"

    def _advance(self, slot: int, settled: int) -> None:
        table, watch = self._table, self._watches[slot]
        if watch.block != table.block_index[slot]:
            watch.block, watch.seen = int(table.block_index[slot]), int(table.first_response[slot])
        while watch.seen < settled and not watch.finder.has_ended:
            if watch.given is not None and table.block_start[slot] + watch.seen == watch.given[0]:
                # All of the budget is used: what is given ends the block.
                self.close(slot)
                return
            watch.finder.push([int(table.canvas[slot, watch.seen])])
            watch.seen += 1
            place = self._give_end(slot, watch)
            if place is not None:
                table.reopen(slot, place)
                return
        if watch.finder.has_ended:
            self._release(slot, watch)

    def _give_end(self, slot: int, watch: ThinkWatch) -> int | None:
        """Give the end once its place is known; the place, if it lies in the open block."""
        first, table = watch.finder.first, self._table
        if watch.given is not None or first is None or watch.finder.has_ended:
            return None
        start = int(table.prompt_length[slot]) + first + watch.budget
        positions = np.arange(start, min(start + len(watch.end_ids), table.end_position[slot]))
        if not len(positions):
            # The answer ends before.
            self.close(slot)
            return None
        ids = np.array(watch.end_ids[: len(positions)], np.int64)
        watch.given = positions
        table.pins[slot] = table.pins[slot].add(Pins.at(positions, ids))
        place = start - int(table.block_start[slot])
        return place if place < table.block_length[slot] else None

    def _release(self, slot: int, watch: ThinkWatch) -> None:
        """The model has ended its block itself."""
        table = self._table
        self.close(slot)
        if watch.given is None:
            return
        left = table.pins[slot].drop(watch.given)
        table.pins[slot] = left if len(left.positions) else NO_PINS
        place = int(watch.given[0] - table.block_start[slot])
        if place < table.block_length[slot]:
            table.reopen(slot, place)
