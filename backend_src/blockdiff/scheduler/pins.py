"""Output positions whose tokens a request gives: which of them lie in a block.

Knows nothing of slots' canvases or of how open positions are decided.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class Pins(NamedTuple):
    """Given tokens of one request in order of position; [P] each."""

    positions: Ints  # in the sequence, the prompt included
    token_ids: Ints
    log_probs: Floats  # 0 but for tokens that a preview has chosen

    @classmethod
    def of(cls, pinned: Sequence[tuple[int, int]], prompt_length: int) -> "Pins":
        """From (place counted from the first output token, token id) pairs in any order."""
        pairs = np.array(sorted(pinned), np.int64).reshape(-1, 2)
        return cls.at(pairs[:, 0] + prompt_length, pairs[:, 1])

    @classmethod
    def at(cls, positions: Ints, token_ids: Ints, log_probs: Floats | None = None) -> "Pins":
        """From arrays in order of position."""
        values = np.zeros(len(positions), np.float32) if log_probs is None else log_probs
        return cls(positions, token_ids, values)

    def between(self, start: int, end: int) -> "Pins":
        """Those at positions from ``start`` up to, not including, ``end``."""
        first, last = np.searchsorted(self.positions, [start, end])
        return self._part(slice(first, last))

    def add(self, others: "Pins") -> "Pins":
        """These and ``others``, which win where both have a position."""
        kept = self.drop(others.positions)
        joined = Pins(
            np.concatenate([kept.positions, others.positions]),
            np.concatenate([kept.token_ids, others.token_ids]),
            np.concatenate([kept.log_probs, others.log_probs]),
        )
        return joined._part(np.argsort(joined.positions))

    def drop(self, positions: Ints) -> "Pins":
        """All but those at ``positions``."""
        return self._part(np.flatnonzero(~np.isin(self.positions, positions)))

    def _part(self, which: Ints | slice) -> "Pins":
        return Pins(self.positions[which], self.token_ids[which], self.log_probs[which])


NO_PINS = Pins.of((), 0)
