"""Pages and state lines by number: what a scheduler and a model's caches say to each other.

A page holds the keys and values of ``page_length`` consecutive positions in all layers that keep
every position; a state line holds what a request has besides, whatever its length. Knows nothing
of tensors, requests or of who holds which page.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Count = TypeVar("Count", int, Ints)

SMALLEST_PAGE = 16
# state lines that keep states of prefixes, unless a budget says otherwise
SNAPSHOTS_PER_SLOT = 2
# of a pool; never written, for whoever holds no page but is read together with others
EMPTY_PAGES = 1
# sizes up to this many are buckets of their own
EXACT_SIZES = 16
NO_SNAPSHOT = -1


@dataclass(frozen=True)
class CachePool:
    """Memory that slots share: ``pages`` of ``page_length`` positions, ``snapshots`` state lines
    beside the slots' own."""

    pages: int
    page_length: int
    snapshots: int = 0


@dataclass(frozen=True)
class CacheSizes:
    """Bytes on one device: of a page in all layers, and of one slot's state line."""

    page_bytes: int
    state_bytes: int


@dataclass(frozen=True)
class CacheRoom:
    """What caches have been made for; state lines from ``num_slots`` on are snapshots."""

    num_slots: int
    max_context: int
    pool: CachePool
    pages_per_slot: int | None
    """Slot s owns pages s * n .. s * n + n - 1; None: the pages are given out by whoever asks."""

    @property
    def lines(self) -> int:
        return self.num_slots + self.pool.snapshots

    def own_pages(self, slots: Ints, count: int) -> Ints:
        """The first ``count`` pages [S, count] of ``slots`` [S], of as many as each has."""
        assert self.pages_per_slot is not None, "pages of a pool are named in the batch"
        places = np.minimum(np.arange(count), self.pages_per_slot - 1)
        pages: Ints = slots[:, None] * self.pages_per_slot + places
        return pages

    def renew(self, slots: Sequence[int]) -> "CacheWork":
        """Work that makes ``slots`` with pages of their own as new."""
        numbers = np.array(slots, np.int64)
        pages = self.own_pages(numbers, self.pages_per_slot or 0)
        return CacheWork(cleared=pages.ravel(), reset_slots=numbers)


def _none() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class CacheWork:
    """What to do before a round, in this order: copy pages, clear pages, reset, restore."""

    copy_from: Ints = field(default_factory=_none)
    copy_to: Ints = field(default_factory=_none)
    cleared: Ints = field(default_factory=_none)
    """Pages that become zero."""
    reset_slots: Ints = field(default_factory=_none)
    """Slots whose state lines and signals become zero."""
    restore_from: Ints = field(default_factory=_none)
    """State lines that are copied ..."""
    restore_to: Ints = field(default_factory=_none)
    """... to these."""

    def arrays(self) -> dict[str, Ints]:
        """All of it by name, in order."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @property
    def is_empty(self) -> bool:
        return not any(len(numbers) for numbers in self.arrays().values())


def make_room(
    num_slots: int, max_context: int, block_length: int, pool: CachePool | None
) -> CacheRoom:
    """Room in ``pool``; without one every slot gets the pages that ``max_context`` needs."""
    if pool is not None:
        return CacheRoom(num_slots, max_context, pool, None)
    length = default_page_length(block_length)
    each = count_pages(max_context, length)
    return CacheRoom(num_slots, max_context, CachePool(num_slots * each, length), each)


def default_page_length(block_length: int) -> int:
    """The smallest multiple of ``block_length`` that is not below ``SMALLEST_PAGE``."""
    return -(-SMALLEST_PAGE // block_length) * block_length


def count_pages(tokens: Count, page_length: int) -> Count:
    """Pages that ``tokens`` positions from 0 on lie in; an array gives an array."""
    return -(-tokens // page_length)


def round_up(count: int) -> int:
    """The bucket of a row or page count: at least ``count``, at most an eighth more.

    Few sizes, so that shapes of rounds repeat: all up to ``EXACT_SIZES``, then eight per doubling.
    """
    if count <= EXACT_SIZES:
        return count
    step = 1 << ((count - 1).bit_length() - EXACT_SIZES.bit_length() + 1)
    return -(-count // step) * step
