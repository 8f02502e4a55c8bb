"""Plain torch definitions of the output head. Knows nothing of sampling."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def logits(hidden: Tensor, weight: Tensor, cap: float | None = None) -> Tensor:
    """See the package docstring."""
    scores = functional.linear(hidden, weight).float()
    return scores if cap is None else scores.div_(cap).tanh_().mul_(cap)


def best_tokens(
    hidden: Tensor,
    weight: Tensor,
    excluded: Sequence[int] = (),
    tile: int = 8192,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """See the package docstring."""
    best = hidden.new_full((hidden.shape[0],), float("-inf"), dtype=torch.float32)
    total = torch.zeros_like(best)
    ids = torch.zeros_like(best, dtype=torch.int64)
    for start in range(0, weight.shape[0], tile):
        scores = logits(hidden, weight[start : start + tile], cap)
        for token in excluded:
            if start <= token < start + tile:
                scores[:, token - start] = float("-inf")
        tile_best, tile_ids = scores.max(dim=-1)
        top = torch.maximum(best, tile_best)
        # a tile whose every token is excluded keeps exp(-inf) at zero, not at nan
        shift = torch.where(top.isinf(), torch.zeros_like(top), top)
        total = total * (best - shift).exp() + (scores - shift.unsqueeze(1)).exp().sum(-1)
        ids = torch.where(tile_best > best, tile_ids + start, ids)
        best = top
    return ids, 1.0 / total
