"""Which masked positions of a canvas become final after a preview (algorithm ``low_confidence``).

Works on padded tensors, one line per request of the round.
Knows nothing of token ids, requests or caches.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALGORITHMS = ("low_confidence",)
NO_THRESHOLD = float("inf")


def accept(confidence: Tensor, masked: Tensor, minimum: Tensor, threshold: Tensor) -> Tensor:
    """Accept every masked position above its threshold, and at least the ``minimum`` best ones.

    confidence [G, B] float32, masked [G, B] bool (padding is not masked), minimum [G] int64 (at
    least 1, so that every preview makes progress), threshold [G] float32 (compared with ``>``).
    Returns [G, B] bool. Equal confidences are taken from the left.
    """
    ranked = torch.where(masked, confidence, -1.0)
    order = torch.argsort(ranked, dim=1, descending=True, stable=True)
    places = torch.arange(ranked.shape[1], device=ranked.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, places)
    above = ((ranked > threshold[:, None]) & masked).sum(dim=1)
    count = torch.maximum(above, minimum)
    return masked & (rank < count[:, None])


def scheduled_minimum(
    block_length: npt.NDArray[np.int64], steps: npt.NDArray[np.int64], step: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Positions that step number ``step`` (from 0) of a fixed schedule accepts at least.

    A block is shared out over ``steps`` previews, the first ``block_length % steps`` of them one
    more; ``steps`` 0 means no schedule. All arrays [G].
    """
    divisor = np.maximum(steps, 1)
    share = block_length // divisor + (step < block_length % divisor)
    return np.where(steps > 0, np.maximum(share, 1), 1)


def scheduled_counts(block_length: int, steps: int) -> list[int]:
    """The whole schedule of a block: positions accepted per step while masks are left."""
    lengths, all_steps = np.full(steps, block_length), np.full(steps, steps)
    counts: list[int] = scheduled_minimum(lengths, all_steps, np.arange(steps)).tolist()
    return counts
