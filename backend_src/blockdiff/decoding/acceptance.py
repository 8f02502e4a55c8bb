"""Which positions of a canvas get their tokens after a preview.

Works on padded tensors, one line per request of the round.
Knows nothing of token ids, requests or caches.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# a slot's algorithm is stored as its number here
ALGORITHMS = ("low_confidence", "sequential", "entropy_bounded")
LOW_CONFIDENCE, SEQUENTIAL, ENTROPY_BOUNDED = range(3)
NO_THRESHOLD = float("inf")


def accept(confidence: Tensor, masked: Tensor, minimum: Tensor, threshold: Tensor) -> Tensor:
    """Accept every masked position above its threshold, and at least the ``minimum`` best ones.

    confidence [G, B] float32, masked [G, B] bool (padding is not masked), minimum [G] int64 (at
    least 1, so that every preview makes progress), threshold [G] float32 (compared with ``>``).
    Returns [G, B] bool. Equal confidences are taken from the left.
    """
    ranked = torch.where(masked, confidence, -1.0)
    above = ((ranked > threshold[:, None]) & masked).sum(dim=1)
    return _take_best(ranked, masked, torch.maximum(above, minimum))


def accept_by(
    algorithm: Tensor,
    confidence: Tensor,
    entropy: Tensor,
    masked: Tensor,
    minimum: Tensor,
    limit: Tensor,
) -> Tensor:
    """As ``accept``, with an algorithm [G] int64 per line (numbers in ``ALGORITHMS``).

    ``sequential`` takes the ``minimum`` first masked positions. ``entropy_bounded`` takes those of
    lowest entropy [G, B] (nats, of the whole distribution) while their sum stays below ``limit``
    [G] float32, and at least ``minimum``; for ``low_confidence`` the limit is the threshold.
    """
    rule = algorithm[:, None]
    places = torch.arange(masked.shape[1], device=masked.device, dtype=confidence.dtype)
    score = torch.where(rule == SEQUENTIAL, -places, confidence)
    score = torch.where(rule == ENTROPY_BOUNDED, -entropy, score)
    lowest = torch.where(masked, entropy, torch.inf).sort(dim=1).values.cumsum(dim=1)
    bounded = (lowest < limit[:, None]).sum(dim=1)
    above = ((confidence > limit[:, None]) & masked).sum(dim=1)
    count = torch.where(algorithm == ENTROPY_BOUNDED, bounded, above)
    count = torch.where(algorithm == SEQUENTIAL, 0, count)
    ranked = torch.where(masked, score, -torch.inf)
    return _take_best(ranked, masked, torch.maximum(count, minimum))


def find_edits(
    confidence: Tensor, is_other: Tensor, is_editable: Tensor, threshold: Tensor
) -> Tensor:
    """Decided positions that change their token: [G, B] bool.

    is_other [G, B]: the preview's token differs from the canvas; is_editable [G, B]: neither
    masked nor prompt, of a request that edits; threshold [G] float32 (compared with ``>``).
    """
    return is_editable & is_other & (confidence > threshold[:, None])


def _take_best(ranked: Tensor, masked: Tensor, count: Tensor) -> Tensor:
    """The ``count`` [G] masked positions of highest rank [G, B], equal ones from the left."""
    order = torch.argsort(ranked, dim=1, descending=True, stable=True)
    places = torch.arange(ranked.shape[1], device=ranked.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, places)
    return masked & (rank < count[:, None])


def scheduled_minimum(
    places: npt.NDArray[np.int64], steps: npt.NDArray[np.int64], step: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Positions that step number ``step`` (from 0) of a fixed schedule accepts at least.

    The ``places`` of a block are shared out over ``steps`` previews, the first ``places % steps``
    of them one more; ``steps`` 0 means no schedule. All arrays [G].
    """
    divisor = np.maximum(steps, 1)
    share = places // divisor + (step < places % divisor)
    return np.where(steps > 0, np.maximum(share, 1), 1)


def scheduled_counts(block_length: int, steps: int) -> list[int]:
    """The whole schedule of a block, zeros at the end when there are more steps than positions."""
    share, more = divmod(block_length, steps)
    return [share + (step < more) for step in range(steps)]
