"""Second choices for insert and delete editing: the best tokens with and without control tokens.

Knows nothing of blocks; ``decoding.levenshtein`` says which of them is written.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff.decoding.levenshtein import Controls
from blockdiff.decoding.row_sums import log_totals
from blockdiff.decoding.sampling import RowSampling, choose_tokens

_NEVER = float("-inf")


class Alternatives(NamedTuple):
    """[L] each: int64 ids and float32 log probabilities under the whole softmax."""

    other_tokens: Tensor  # as ``choose_tokens``: where the mask is banned, the best but for it
    other_log_probs: Tensor
    tokens: Tensor  # these, or the mask where it is more likely
    log_probs: Tensor
    final_tokens: Tensor  # the best that is no control token
    final_log_probs: Tensor


def choose_alternatives(logits: Tensor, sampling: RowSampling, controls: Controls) -> Alternatives:
    """Choices for ``logits`` [L, V] float32, which is overwritten at what may not be chosen.

    ``sampling`` bans the mask in every row, and the other control tokens where they have no part.
    """
    log_total = log_totals(logits)
    mask = logits[:, controls.mask].clone()
    # the very bits that rows get in rounds without edited ones
    other, other_log_probs = choose_tokens(logits, sampling)
    best = logits.gather(1, other[:, None])[:, 0]
    is_mask = (mask > best) | ((mask == best) & (controls.mask < other))
    logits[:, [controls.delete, controls.split]] = _NEVER
    best, final = logits.max(dim=1)
    return Alternatives(
        other_tokens=other,
        other_log_probs=other_log_probs,
        tokens=torch.where(is_mask, controls.mask, other),
        log_probs=torch.where(is_mask, mask - log_total, other_log_probs),
        final_tokens=final,
        final_log_probs=best - log_total,
    )


def best_unbanned(logits: Tensor, rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Best token [L] int64 and its log probability [L] of logits [L, V], overwritten at the pairs
    (``rows``, ``ids``) [K] int64, which are not chosen."""
    log_total = log_totals(logits)
    logits[rows, ids] = _NEVER
    best, tokens = logits.max(dim=1)
    return tokens, best - log_total
