"""Commands to the other ranks survive being bytes. Run: pytest tests/parallel/test_messages.py"""

from dataclasses import fields

import torch

from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.parallel.messages import Command, decode, encode, pack_batch, unpack_batch


def test_a_round_arrives_as_it_was() -> None:
    batch = RoundBatch.from_segments(
        [
            Segment(Phase.COMMIT, 3, 16, [1, 2, 3, 4], (), 4),
            Segment(Phase.PREVIEW, 3, 20, [5, 5], (0, 1), 2),
            Segment(Phase.PREFILL, 0, 0, range(9), (8,), 8),
        ]
    )
    command, arguments = decode(encode(Command.ROUND, 7, 1, rest=pack_batch(batch)))
    assert command is Command.ROUND and arguments[:2].tolist() == [7, 1]
    got = unpack_batch(arguments[2:], torch.device("cpu"))
    for item in fields(RoundBatch):
        assert torch.equal(getattr(got, item.name), getattr(batch, item.name)), item.name


def test_a_round_without_logits() -> None:
    batch = RoundBatch.from_segments([Segment(Phase.PREFILL, 0, 0, [1, 2])])
    got = unpack_batch(pack_batch(batch), torch.device("cpu"))
    assert got.logit_rows.shape == (0,) and got.token_ids.tolist() == [1, 2]


def test_arguments_and_rest() -> None:
    command, arguments = decode(encode(Command.RESET, 2, rest=[5, 6]))
    assert command is Command.RESET and arguments.tolist() == [2, 5, 6]
