"""Choosing one token per row of logits: greedy, or drawn with filters and a seed.

Confidence is the probability of the chosen token before anything is barred (softmax at temperature
1 over the whole vocabulary), whatever the sampling filters are.
Knows nothing of blocks, acceptance or caches.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff.decoding.adjust import Adjustment
from blockdiff.decoding.noise import noise_keys
from blockdiff.decoding.row_sums import row_sums
from blockdiff_kernels.head.drawing import draw

__all__ = ["Draws", "RowSampling", "choose_tokens", "noise_keys", "top_tokens"]

_NEVER = float("-inf")


class Draws(NamedTuple):
    """The N rows that are drawn, one device tensor each."""

    rows: Tensor
    """[N] int64"""
    temperature: Tensor
    """[N] float32, above 0"""
    top_k: Tensor
    """[N] int64, 0 is off"""
    top_p: Tensor
    """[N] float32, 1 is off"""
    keys: Tensor
    """[N, 2] int64 from :func:`noise_keys`"""
    has_filters: bool
    """Whether any row uses top-k or top-p."""
    min_p: Tensor | None = None
    """[N] float32, 0 is off; None: for all rows"""


@dataclass(frozen=True)
class RowSampling:
    """How to choose for the L rows of a round. Filled by the engine."""

    never: tuple[int, ...] = ()
    """Ids that no row may choose."""
    banned: tuple[Tensor, Tensor] | None = None
    """Rows and ids, [K] int64 on the device: pairs that must not be chosen."""
    draws: Draws | None = None
    """None: every row is greedy."""
    changes: Adjustment | None = None
    """Of the logits, before anything else is made of them."""
    top_rows: Tensor | None = None
    """[K] int64 rows whose most probable tokens are wanted."""
    masks: tuple[Tensor, Tensor] | None = None
    """[K] int64 rows, and [K, ceil(V / 32)] int32 words of what these may choose: token t is bit
    t % 32 of word t // 32."""

    def ban(self, scores: Tensor) -> None:
        """Overwrite scores [L, V] of what may not be chosen."""
        for token in self.never:
            scores[:, token] = _NEVER
        if self.banned is not None:
            scores[self.banned] = _NEVER
        if self.masks is not None:
            bar_unset(scores, *self.masks)


def bar_unset(scores: Tensor, rows: Tensor, words: Tensor) -> None:
    """Overwrite scores [L, V] of ``rows`` [K] where the bits of ``words`` [K, W] are not set."""
    bits = (words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=words.device)) & 1
    is_set = bits.reshape(len(words), -1)[:, : scores.shape[1]] != 0
    scores[rows] = scores[rows].masked_fill(~is_set, _NEVER)


def choose_tokens(logits: Tensor, sampling: RowSampling) -> tuple[Tensor, Tensor]:
    """Token ids [L] int64 and log confidences [L] float32 for ``logits`` [L, V] float32.

    ``logits`` is overwritten where a choice is barred.
    """
    log_probs = torch.log_softmax(logits, dim=1)
    sampling.ban(logits)
    tokens = logits.argmax(dim=1)
    if sampling.draws is not None:
        own = sampling.draws
        filters = (own.top_k, own.top_p) if own.has_filters else None
        tokens[own.rows] = draw(logits[own.rows], own.temperature, own.keys, filters, own.min_p)
    return tokens, log_probs.gather(1, tokens[:, None])[:, 0]


def top_tokens(logits: Tensor, count: int) -> list[Tensor]:
    """The ``count`` most probable ids [K, count] int64 of logits [K, V] float32, best first (equal
    ones: the lowest id), and their log probabilities [K, count] float32; fewer where V is smaller.
    """
    log_probs, size = torch.log_softmax(logits, dim=1), logits.shape[1]
    # Numbers in the order of the floats, and then of falling ids: no two are equal.
    bits = log_probs.view(torch.int32)
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    order |= torch.arange(size - 1, -1, -1, device=logits.device)
    best = order.topk(min(count, size), dim=1).values
    ids = size - 1 - (best & 0xFFFFFFFF)
    return [ids, log_probs.gather(1, ids)]


def entropies(logits: Tensor) -> Tensor:
    """Entropy in nats [L] float32 of the softmax of each row [L, V]."""
    log_probs = torch.log_softmax(logits, dim=1)
    return row_sums(torch.special.entr(log_probs.exp()))
