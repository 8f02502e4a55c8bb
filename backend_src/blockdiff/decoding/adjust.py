"""Changing logits before anything is chosen: penalties, biases and ramps, token by token.

For a token that the response holds count times, not counting the row's own place, first
l = l / r where l > 0 and l * r elsewhere (r the repetition penalty), then l - presence -
frequency * count; for every token l + bias + min(most, slope * (place - start)). Works on pairs of
row and token, never on all logits. Knows nothing of requests or of what is chosen.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Adjustment(NamedTuple):
    """What changes in L rows of logits. Pairs are U tokens of requests; each row has a run of them.

    Rows are float32 but where it says int64.
    """

    first: Tensor
    """[L] int64 number of the row's first pair."""
    length: Tensor
    """[L] int64 how many pairs it has."""
    total: int
    """Sum of ``length``."""
    own: Tensor
    """[L] int64 token of the response at the row's own place, or -1."""
    place: Tensor
    """[L] counted from the first output token."""
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    ids: Tensor
    """[U] int64, none twice in a run."""
    held: Tensor
    """[U] int64 how often the response holds it"""
    bias: Tensor
    start: Tensor
    slope: Tensor
    most: Tensor
    is_once: Tensor
    """[U] bool: no ramp for a token that the response holds."""


def adjust(logits: Tensor, changes: Adjustment) -> None:
    """Overwrite logits [L, V] float32 by ``changes``; a row's results depend on that row alone."""
    device = logits.device
    rows = torch.repeat_interleave(
        torch.arange(len(logits), device=device), changes.length, output_size=changes.total
    )
    shift = changes.first - (changes.length.cumsum(0) - changes.length)
    pairs = torch.arange(changes.total, device=device) + shift[rows]
    ids = changes.ids[pairs]
    value = logits[rows, ids]
    count = changes.held[pairs] - (ids == changes.own[rows]).long()
    is_held = count > 0
    repetition = changes.repetition[rows]
    penalised = torch.where(value > 0, value / repetition, value * repetition)
    penalised = penalised - changes.presence[rows] - changes.frequency[rows] * count
    ramp = changes.slope[pairs] * (changes.place[rows] - changes.start[pairs])
    ramp = torch.minimum(ramp.clamp_min(0.0), changes.most[pairs])
    ramp = ramp.masked_fill(changes.is_once[pairs] & is_held, 0.0)
    logits[rows, ids] = torch.where(is_held, penalised, value) + changes.bias[pairs] + ramp
