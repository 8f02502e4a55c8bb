"""How a block is decided: token choice, acceptance, endings. Pure functions, no state."""

from blockdiff.decoding.acceptance import ALGORITHMS, accept, scheduled_counts, scheduled_minimum
from blockdiff.decoding.endings import Ending, find_endings
from blockdiff.decoding.sampling import RowSampling, choose_tokens, noise_keys

__all__ = [
    "ALGORITHMS",
    "Ending",
    "RowSampling",
    "accept",
    "choose_tokens",
    "find_endings",
    "noise_keys",
    "scheduled_counts",
    "scheduled_minimum",
]
