"""Drawing one token per row of logits: temperature, top-k, top-p and min-p, by Gumbel-max.

Knows nothing of what may not be chosen.
"""

import torch
from torch import Tensor

from blockdiff_kernels.head.noise import gumbel_noise

LEAST_TEMPERATURE = 1e-30
"""A smaller one is as good as greedy and would make infinities of logits."""
_NEVER = float("-inf")


def draw(
    logits: Tensor,
    temperature: Tensor,
    keys: Tensor,
    filters: tuple[Tensor, Tensor] | None,
    min_p: Tensor | None = None,
) -> Tensor:
    """Ids [N] int64 drawn from ``logits`` [N, V] with temperature [N] and noise of keys [N, 2].

    ``filters``: top-k [N], 0 is off, and top-p [N], 1 is off; ``min_p`` [N], 0 is off.
    """
    scores = logits / temperature.clamp_min(LEAST_TEMPERATURE)[:, None]
    if filters is not None:
        scores = keep_best(scores, *filters)
    if min_p is not None:
        scores = keep_probable(scores, min_p)
    return (scores + gumbel_noise(keys, scores.shape[1])).argmax(dim=1)


def keep_best(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Keep the ``top_k`` best and, of these, the smallest set that reaches ``top_p``."""
    ordered, order = torch.sort(scores, dim=1, descending=True, stable=True)
    places = torch.arange(scores.shape[1], device=scores.device)
    limit = torch.where(top_k > 0, top_k, scores.shape[1])
    ordered = torch.where(places[None, :] < limit[:, None], ordered, _NEVER)
    probabilities = torch.softmax(ordered, dim=1)
    before = probabilities.cumsum(dim=1) - probabilities
    # The first token always stays, so a tiny top_p is greedy rather than empty.
    is_dropped = (before >= top_p[:, None]) & (places[None, :] > 0) & (top_p[:, None] < 1)
    ordered = torch.where(is_dropped, _NEVER, ordered)
    return torch.empty_like(scores).scatter_(1, order, ordered)


def keep_probable(scores: Tensor, min_p: Tensor) -> Tensor:
    """Keep tokens that are at least ``min_p`` [N] times as probable as the best one."""
    least = scores.amax(dim=1) + min_p.log()
    return scores.masked_fill(scores < least[:, None], _NEVER)
