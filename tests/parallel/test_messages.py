"""Commands to the other ranks survive being bytes. Run: pytest tests/parallel/test_messages.py"""

from dataclasses import fields

import numpy as np
import pytest

from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.pages import CachePool, CacheWork, Ints
from blockdiff.parallel.messages import (
    Command,
    decode,
    encode,
    pack_batch,
    pack_pool,
    pack_work,
    unpack_batch,
    unpack_pool,
    unpack_work,
)

PAGES, SNAPSHOTS = np.array([[4, 2], [4, 2], [0, 9]]), np.array([-1, -1, 5])


@pytest.mark.parametrize("more", [{}, {"pages": PAGES, "snapshots": SNAPSHOTS}])
def test_a_round_arrives_as_it_was(more: dict[str, Ints]) -> None:
    batch = RoundBatch.from_segments(
        [
            Segment(Phase.COMMIT, 3, 16, [1, 2, 3, 4], (), 4),
            Segment(Phase.PREVIEW, 3, 20, [5, 5], (0, 1), 2),
            Segment(Phase.PREFILL, 0, 0, range(9), (8,), 8),
        ],
        **more,
    )
    command, arguments = decode(encode(Command.ROUND, 7, 1, rest=pack_batch(batch)))
    assert command is Command.ROUND and arguments[:2].tolist() == [7, 1]
    got = unpack_batch(arguments[2:])
    for item in fields(RoundBatch):
        assert np.array_equal(getattr(got, item.name), getattr(batch, item.name)), item.name


def test_a_round_without_logits() -> None:
    batch = RoundBatch.from_segments([Segment(Phase.PREFILL, 0, 0, [1, 2])])
    got = unpack_batch(pack_batch(batch))
    assert got.logit_rows.shape == (0,) and got.token_ids.tolist() == [1, 2]


def test_arguments_and_rest() -> None:
    command, arguments = decode(encode(Command.FORGET_SIGNALS, 2, rest=[5, 6]))
    assert command is Command.FORGET_SIGNALS and arguments.tolist() == [2, 5, 6]


def test_work_arrives_as_it_was() -> None:
    lists = [np.arange(count, dtype=np.int64) for count in (2, 2, 0, 3, 1, 1)]
    got = unpack_work(pack_work(CacheWork(*lists)))
    for one, other in zip(got.arrays().values(), lists, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("pool", [None, CachePool(12, 16, 3), CachePool(1, 8)])
def test_a_pool_arrives_as_it_was(pool: CachePool | None) -> None:
    assert unpack_pool(np.array(pack_pool(pool), np.int64)) == pool
