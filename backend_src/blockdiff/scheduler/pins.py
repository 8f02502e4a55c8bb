"""Output positions whose tokens a request gives: which of them lie in a block.

Knows nothing of slots' canvases or of how open positions are decided.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Pins(NamedTuple):
    """Given tokens of one request in order of position; [P] int64 each."""

    positions: Ints  # in the sequence, the prompt included
    token_ids: Ints

    @classmethod
    def of(cls, pinned: Sequence[tuple[int, int]], prompt_length: int) -> "Pins":
        """From (place counted from the first output token, token id) pairs in any order."""
        pairs = np.array(sorted(pinned), np.int64).reshape(-1, 2)
        return cls(pairs[:, 0] + prompt_length, pairs[:, 1])

    def between(self, start: int, end: int) -> "Pins":
        """Those at positions from ``start`` up to, not including, ``end``."""
        first, last = np.searchsorted(self.positions, [start, end])
        return Pins(self.positions[first:last], self.token_ids[first:last])


NO_PINS = Pins.of((), 0)
