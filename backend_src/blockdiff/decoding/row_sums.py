"""Sums over the vocabulary that have the same bits for a row alone as beside others.

A sum over a single long row is shared among threads and added up in another order than one of many.
Knows nothing of sampling.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def log_totals(logits: Tensor) -> Tensor:
    """log of the sum of exp [L] of logits [L, V]."""
    return _never_alone(lambda rows: torch.logsumexp(rows, dim=1), logits)


def row_sums(values: Tensor) -> Tensor:
    """Sums [L] of values [L, V]."""
    return _never_alone(lambda rows: rows.sum(dim=1), values)


def _never_alone(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    return function(rows.expand(2, -1))[:1] if len(rows) == 1 else function(rows)
