"""What rank 0 tells the other ranks: one array of int64 per command.

Knows rounds and caches by number; knows nothing of how messages travel.
"""

from collections.abc import Sequence
from dataclasses import fields
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch

from blockdiff.models.base import RoundBatch

Numbers = npt.NDArray[np.int64]


class Command(IntEnum):
    """The first number of a message; its arguments follow."""

    NEW_CACHES = 0  # number, slots, max_context, then the numbers of the caches still in use
    RESET = 1  # number of the caches, then slots
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


def pack_batch(batch: RoundBatch) -> Numbers:
    """All tensors of a round, each after its length."""
    parts: list[Numbers] = []
    for item in fields(RoundBatch):
        tensor = getattr(batch, item.name)
        assert tensor.dtype == torch.int64 and tensor.dim() == 1, item.name
        parts += [np.array([tensor.shape[0]], np.int64), tensor.cpu().numpy()]
    return np.concatenate(parts)


def unpack_batch(numbers: Numbers, device: torch.device) -> RoundBatch:
    """The twin of ``pack_batch``, on ``device`` by one transfer."""
    # the copy is writable, which torch wants of memory it shares
    flat = torch.from_numpy(numbers.copy()).to(device)
    tensors, start = {}, 0
    for item in fields(RoundBatch):
        stop = start + 1 + int(numbers[start])
        tensors[item.name] = flat[start + 1 : stop]
        start = stop
    return RoundBatch(**tensors)
