"""Proof after a round that memory is owned as it should be. Off in serving, on in tests.

Raises AssertionError; knows nothing of tensors.
"""

import numpy as np

from blockdiff.pages import NO_SNAPSHOT
from blockdiff.scheduler.memory import Memory
from blockdiff.scheduler.table import SlotState, SlotTable


def check_memory(table: SlotTable, memory: Memory) -> None:
    """Every page is free, or one request's, or one kept prefix's; and so for state lines."""
    _check_pages(memory)
    _check_slots(table, memory)
    _check_prefixes(memory)
    _check_lines(memory)


def _check_pages(memory: Memory) -> None:
    pool = memory.pool
    counts = np.zeros(pool.total, np.int64)
    for slot in range(len(memory.held)):
        held = memory.held_pages(slot)
        assert len(np.unique(held)) == len(held), f"slot {slot} holds a page twice"
        counts[held] += 1
    kept = np.zeros(pool.total, np.int64)
    for unit in memory.tree.units.values():
        kept[unit.pages] += 1
    assert (kept <= 1).all(), "a page belongs to two prefixes"
    assert (counts[kept == 0] <= 1).all(), "two requests write one page"
    assert (pool.counts == counts + kept).all(), "a page has lost or gained a holder"
    free = np.zeros(pool.total, np.bool_)
    free[pool.free_pages] = True
    assert int(free.sum()) == pool.free, "a page is free twice"
    assert (free == (pool.counts == 0)).all(), "a page is neither free nor held"


def _check_slots(table: SlotTable, memory: Memory) -> None:
    is_open = table.state != SlotState.FREE
    assert not memory.held[~is_open].any(), "a request has ended and holds pages"
    assert (memory.held >= memory.pages_for(table.written)).all(), "written beyond what is held"
    assert (table.written <= table.final).all(), "written tokens that are not final"
    for slot, path in enumerate(memory.paths):
        pages = [page for unit in path for page in unit.pages.tolist()]
        assert memory.held_pages(slot)[: len(pages)].tolist() == pages, "a prefix is not shared"


def _check_prefixes(memory: Memory) -> None:
    tree = memory.tree
    users = dict.fromkeys(tree.units, 0)
    for path in memory.paths:
        for unit in path:
            assert tree.units.get(unit.digest) is unit, "a request uses a prefix that is gone"
            users[unit.digest] += 1
    for digest, unit in tree.units.items():
        assert unit.users == users[digest], "a prefix has lost or gained a user"
        assert (digest in tree.idle) == (not unit.users), "a prefix in use may be dropped"
    assert tree.idle_pages == sum(len(unit.pages) for unit in tree.idle.values())


def _check_lines(memory: Memory) -> None:
    lines = memory.lines
    kept = {unit.line: unit for unit in memory.tree.units.values() if unit.line != NO_SNAPSHOT}
    assert kept.keys() == lines.kept.keys(), "a state line is nobody's"
    assert all(lines.kept[line] is unit for line, unit in kept.items()), "two own a state line"
    assert not set(lines.free) & kept.keys() and len(set(lines.free)) == len(lines.free)
    everyone = set(range(lines.first, lines.first + lines.count))
    assert set(lines.free) | kept.keys() <= everyone, "a state line that does not exist"
