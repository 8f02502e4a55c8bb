"""Which positions of a canvas get their tokens after a preview.

Works on padded arrays on the host, one line per request of the round.
Knows nothing of token ids, requests or caches.
"""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

# a slot's algorithm is stored as its number here
ALGORITHMS = ("low_confidence", "sequential", "entropy_bounded")
LOW_CONFIDENCE, SEQUENTIAL, ENTROPY_BOUNDED = range(3)
NO_THRESHOLD = float("inf")


def accept(confidence: Floats, masked: Flags, minimum: Ints, threshold: Floats) -> Flags:
    """Accept every masked position above its threshold, and at least the ``minimum`` best ones.

    confidence [G, B], masked [G, B] (padding is not masked), minimum [G] (at least 1, so that every
    preview makes progress), threshold [G] (compared with ``>``). Returns [G, B]. Equal confidences
    are taken from the left.
    """
    above: Flags = masked & (confidence > threshold[:, None])
    count = above.sum(axis=1)
    if (count >= minimum).all():
        return above
    return _take_best(confidence, masked, np.maximum(count, minimum))


def accept_by(
    algorithm: Ints,
    confidence: Floats,
    entropy: Floats,
    masked: Flags,
    minimum: Ints,
    limit: Floats,
) -> Flags:
    """As ``accept``, with an algorithm [G] per line (numbers in ``ALGORITHMS``).

    ``sequential`` takes the ``minimum`` first masked positions. ``entropy_bounded`` takes those of
    lowest entropy [G, B] (nats, of the whole distribution) while their sum stays below ``limit``
    [G], and at least ``minimum``; for ``low_confidence`` the limit is the threshold.
    """
    rule = algorithm[:, None]
    places = np.arange(masked.shape[1], dtype=np.float32)
    score = np.where(rule == SEQUENTIAL, -places, confidence)
    score = np.where(rule == ENTROPY_BOUNDED, -entropy, score)
    lowest = np.sort(np.where(masked, entropy, np.inf), axis=1)
    sums = lowest.cumsum(axis=1, dtype=np.float64).astype(np.float32)
    bounded = (sums < limit[:, None]).sum(axis=1)
    above = ((confidence > limit[:, None]) & masked).sum(axis=1)
    count = np.where(algorithm == ENTROPY_BOUNDED, bounded, above)
    count = np.where(algorithm == SEQUENTIAL, 0, count)
    return _take_best(score, masked, np.maximum(count, minimum))


def find_edits(confidence: Floats, is_other: Flags, is_editable: Flags, threshold: Floats) -> Flags:
    """Decided positions that change their token: [G, B].

    is_other [G, B]: the preview's token differs from the canvas; is_editable [G, B]: neither
    masked nor prompt, of a request that edits; threshold [G] (compared with ``>``).
    """
    edits: Flags = is_editable & is_other & (confidence > threshold[:, None])
    return edits


def _take_best(score: Floats, masked: Flags, count: Ints) -> Flags:
    """The ``count`` [G] masked positions of highest score [G, B], equal ones from the left."""
    order = np.argsort(np.where(masked, -score, np.inf), axis=1, kind="stable")
    rank = np.argsort(order, axis=1)
    best: Flags = masked & (rank < count[:, None])
    return best


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
