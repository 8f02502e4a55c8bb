"""Lines that hold copies of recurrent states: which are free, and which was used longest ago.

Knows numbers and their users' names; knows nothing of states, slots or tensors.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Owner = TypeVar("Owner")


class SnapshotLines(Generic[Owner]):
    """``count`` lines from ``first`` on. A line is free, written (taken) or kept by one owner."""

    def __init__(self, first: int, count: int, forget: Callable[[Owner], None]) -> None:
        """``forget`` tells an owner that its line has been taken from it."""
        self.first = first
        self.count = count
        self.free = list(range(first + count - 1, first - 1, -1))
        self.kept: OrderedDict[int, Owner] = OrderedDict()
        self._forget = forget

    def take(self) -> int | None:
        """A line to write, if need be the one that was used longest ago; None: all are taken."""
        if self.free:
            return self.free.pop()
        if not self.kept:
            return None
        line, owner = self.kept.popitem(last=False)
        self._forget(owner)
        return line

    def keep(self, line: int, owner: Owner) -> None:
        """A taken line has been written; it is ``owner``'s until it is taken or dropped."""
        self.kept[line] = owner

    def use(self, line: int) -> None:
        """A kept line has been read."""
        self.kept.move_to_end(line)

    def give_back(self, line: int) -> None:
        """A line that is not needed any more, kept or taken."""
        self.kept.pop(line, None)
        self.free.append(line)
