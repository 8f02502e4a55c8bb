"""Prefixes whose keys and values are kept for later requests: a tree of whole units of tokens.

A unit is a run of pages that ends where blocks end. It is named by a digest of everything before
and in it, so equal names mean equal tokens and equal maths. Only committed units come in.
Knows nothing of slots, tensors or rounds.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blockdiff.pages import NO_SNAPSHOT
from blockdiff.scheduler.arrays import Ints, Tokens
from blockdiff.scheduler.pages import PagePool
from blockdiff.scheduler.snapshots import SnapshotLines


def first_digest(*options: int) -> bytes:
    """The name of the empty prefix under ``options`` that change what a commit writes."""
    return hashlib.blake2b(repr(options).encode(), digest_size=16).digest()


def next_digest(before: bytes, tokens: Tokens) -> bytes:
    """The name of the prefix that goes on from ``before`` by the unit ``tokens``."""
    return hashlib.blake2b(before + tokens.tobytes(), digest_size=16).digest()


@dataclass(eq=False)
class Unit:
    """One unit of one prefix. ``users`` are requests that have it in their page tables."""

    before: bytes  # the digest of what it goes on from
    digest: bytes
    tokens: Tokens  # [unit length]
    pages: Ints
    users: int = 0
    line: int = NO_SNAPSHOT  # of the state after this unit


class PrefixTree:
    """Units by digest. Those without users can be dropped, the one used longest ago first."""

    def __init__(self, pool: PagePool, lines: SnapshotLines[Unit]) -> None:
        self.units: dict[bytes, Unit] = {}
        self._followers: dict[bytes, dict[bytes, Unit]] = {}
        # A unit is always newer here than its children, so the oldest one has none.
        self.idle: OrderedDict[bytes, Unit] = OrderedDict()
        self.idle_pages = 0
        self._pool = pool
        self._lines = lines

    def find(self, digests: Sequence[bytes]) -> list[Unit]:
        """The units of the longest known prefix of ``digests``."""
        found = []
        for digest in digests:
            unit = self.units.get(digest)
            if unit is None:
                break
            found.append(unit)
        return found

    def followers(self, digest: bytes) -> Iterable[Unit]:
        """Units that go on from the prefix named ``digest``."""
        return self._followers.get(digest, {}).values()

    def hold(self, unit: Unit) -> None:
        """One more user; a user of a unit is one of all units before it."""
        if not unit.users:
            del self.idle[unit.digest]
            self.idle_pages -= len(unit.pages)
        unit.users += 1

    def let_go(self, units: Sequence[Unit]) -> None:
        """One user less for the units of one prefix, in its order."""
        for unit in reversed(units):
            unit.users -= 1
            if not unit.users:
                self.idle[unit.digest] = unit
                self.idle_pages += len(unit.pages)

    def insert(self, unit: Unit) -> None:
        """Take in a unit that its first user has committed; its pages get one more holder."""
        self._pool.share(unit.pages)
        unit.users = 1
        self.units[unit.digest] = unit
        self._followers.setdefault(unit.before, {})[unit.digest] = unit

    def drop_oldest(self) -> None:
        """Forget the idle unit that was used longest ago; its pages are free then."""
        digest, unit = self.idle.popitem(last=False)
        assert digest not in self._followers, "a unit goes after those that follow it"
        self.idle_pages -= len(unit.pages)
        del self.units[digest]
        siblings = self._followers[unit.before]
        del siblings[digest]
        if not siblings:
            del self._followers[unit.before]
        if unit.line != NO_SNAPSHOT:
            self._lines.give_back(unit.line)
        self._pool.release(unit.pages)

    def make_free(self, count: int) -> bool:
        """Drop idle units until ``count`` pages are free, if that can be done."""
        if self._pool.free + self.idle_pages < count:
            return False
        while self._pool.free < count:
            self.drop_oldest()
        return True
