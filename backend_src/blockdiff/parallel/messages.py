"""What rank 0 tells the other ranks: one array of int64 per command.

Knows rounds and caches by number; knows nothing of how messages travel.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from blockdiff.models.base import RoundBatch
from blockdiff.pages import CachePool, CacheWork

Numbers = npt.NDArray[np.int64]
_NOTHING: Numbers = np.zeros(0, np.int64)


class Command(IntEnum):
    """The first number of a message; its arguments follow."""

    # number, slots, max_context, pages, page length and snapshots of the pool (0 0 0: none), then
    # the numbers of the caches still in use
    NEW_CACHES = 0
    PREPARE = 1  # number of the caches, then packed work
    ROUND = 2  # number of the caches, whether a trace is wanted, then a packed batch
    HEAD = 3  # rows of hidden state that follow by broadcast
    STATES = 4  # number of the caches, slot, committed tokens
    EXPECT = 5  # rows of logits that follow by broadcast
    STORE_SIGNALS = 6  # number of the caches, rows L that follow by broadcast, L slots, L places
    FORGET_SIGNALS = 7  # number of the caches, then slots


def encode(command: Command, *arguments: int, rest: Sequence[int] | Numbers = ()) -> bytes:
    """A message as bytes."""
    head = np.array([command, *arguments], np.int64)
    return np.concatenate([head, np.asarray(rest, np.int64)]).tobytes()


def decode(message: bytes) -> tuple[Command, Numbers]:
    """The command and its arguments."""
    numbers = np.frombuffer(message, np.int64)
    return Command(int(numbers[0])), numbers[1:]


def pack_pool(pool: CachePool | None) -> list[int]:
    """Three numbers."""
    return [0, 0, 0] if pool is None else [pool.pages, pool.page_length, pool.snapshots]


def unpack_pool(numbers: Numbers) -> CachePool | None:
    """The twin of ``pack_pool``."""
    pages, page_length, snapshots = numbers.tolist()
    return CachePool(pages, page_length, snapshots) if page_length else None


def pack_work(work: CacheWork) -> Numbers:
    """All lists of ``work``, each after its length."""
    return _pack(work.arrays().values())


def unpack_work(numbers: Numbers) -> CacheWork:
    """The twin of ``pack_work``."""
    return CacheWork(*_unpack(numbers))


def pack_batch(batch: RoundBatch) -> Numbers:
    """All arrays of a round, each after its length; one that is absent is empty."""
    arrays = (getattr(batch, item.name) for item in fields(RoundBatch))
    return _pack(_NOTHING if array is None else array.ravel() for array in arrays)


def unpack_batch(numbers: Numbers) -> RoundBatch:
    """The twin of ``pack_batch``."""
    found = dict(zip((item.name for item in fields(RoundBatch)), _unpack(numbers), strict=True))
    segments = len(found["slots"])
    pages, snapshots = found.pop("pages"), found.pop("snapshots")
    return RoundBatch(
        **found,
        pages=pages.reshape(segments, -1) if len(pages) else None,
        snapshots=snapshots if len(snapshots) else None,
    )


def _pack(arrays: Iterable[Numbers]) -> Numbers:
    parts: list[Numbers] = []
    for array in arrays:
        assert array.dtype == np.int64 and array.ndim == 1, "messages are lists of int64"
        parts += [np.array([len(array)], np.int64), array]
    return np.concatenate(parts)


def _unpack(numbers: Numbers) -> list[Numbers]:
    # the copy is writable, which torch wants of memory it shares
    flat, found, start = numbers.copy(), [], 0
    while start < len(flat):
        stop = start + 1 + int(flat[start])
        found.append(flat[start + 1 : stop])
        start = stop
    return found
