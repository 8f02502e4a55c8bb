"""What follows from the arrays of a slot table: which tokens are settled, where a block ends.

Reads only. Knows nothing of rounds or of how slots change.
"""

import numpy as np

from blockdiff.decoding.acceptance import LOW_CONFIDENCE, NO_THRESHOLD
from blockdiff.decoding.endings import Ending, find_endings
from blockdiff.scheduler.arrays import Flags, Ints, SlotArrays


class SlotQueries(SlotArrays):
    """Questions about some slots at once."""

    def thresholds_used(self, slots: Ints) -> list[float | None]:
        """Confidence thresholds of the open blocks of ``slots`` [N]; None where none decides."""
        has_one = (self.algorithm[slots] == LOW_CONFIDENCE) & ~self.is_autoregressive[slots]
        has_one &= self.threshold[slots] != NO_THRESHOLD
        # the decimals that float32 stands for
        values = self.threshold[slots].astype(np.float64).round(6).tolist()
        return [v if has else None for v, has in zip(values, has_one.tolist(), strict=True)]

    def first_ending(self, slots: Ints) -> Ints:
        """Place of the open blocks from which on an end token counts, a pinned one too."""
        early = self.eos_allowed_from[slots] - self.block_start[slots]
        found: Ints = np.maximum(self.first_response[slots], early)
        return found

    def is_certified(self, slots: Ints) -> Flags:
        """Places [N, B] of the open blocks of ``slots`` [N] whose constraints have taken them."""
        counts = np.where(self.is_constrained, self.certified - self.block_start, 0)[slots]
        flags: Flags = np.arange(self.canvas.shape[1]) < counts[:, None]
        return flags

    def may_change(self, slots: Ints) -> Flags:
        """Places [G, B] of open blocks whose tokens are not settled."""
        changing: Flags = self.masked[slots]
        if self.is_unsettled[slots].any():
            places = np.arange(changing.shape[1])
            is_open = places < self.block_length[slots][:, None]
            is_open &= (places >= self.first_response[slots][:, None]) & ~self.pinned[slots]
            is_open &= ~self.is_certified(slots)
            changing |= is_open & self.is_unsettled[slots][:, None]
        return changing

    def endings(self, slots: Ints) -> Ending:
        """How far the open blocks of ``slots`` [N] are settled, and where they end."""
        return find_endings(
            self.canvas[slots],
            self.may_change(slots),
            self.block_length[slots],
            self.first_ending(slots),
            self.eos_ids[slots],
        )
