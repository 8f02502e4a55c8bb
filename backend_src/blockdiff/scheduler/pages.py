"""Pages of key-value memory: which are free, and how many holders each of the others has.

Every operation costs as much as the pages it touches. Knows nothing of slots, tokens or tensors.
"""

import numpy as np

from blockdiff.scheduler.arrays import Ints


class PagePool:
    """``total`` pages, numbered from 0. A page is free exactly when its count of holders is 0."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.counts: Ints = np.zeros(total, np.int64)
        # a stack whose first ``free`` entries are the free pages
        self._stack: Ints = np.arange(total - 1, -1, -1, dtype=np.int64)
        self.free = total

    @property
    def free_pages(self) -> Ints:
        """Numbers [free] of the free pages."""
        return self._stack[: self.free]

    def take(self, count: int) -> Ints:
        """``count`` free pages, each with one holder now."""
        assert count <= self.free, "more pages wanted than are free"
        self.free -= count
        taken = self._stack[self.free : self.free + count].copy()
        self.counts[taken] = 1
        return taken

    def share(self, pages: Ints) -> None:
        """One more holder for every one of ``pages`` [N], which are distinct and not free."""
        self.counts[pages] += 1

    def release(self, pages: Ints) -> None:
        """One holder less for every one of ``pages`` [N], which are distinct."""
        self.counts[pages] -= 1
        empty = pages[self.counts[pages] == 0]
        self._stack[self.free : self.free + len(empty)] = empty
        self.free += len(empty)
