"""Keys of counter-based noise: pure functions of (seed, position, step), never of the batch.

Knows nothing of logits, requests or random generators.
"""

import numpy as np
import numpy.typing as npt

_LOW_32 = 0xFFFFFFFF


def noise_keys(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64], steps: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Two 32-bit words [L, 2] per row from (seed, absolute position, denoise step), each [L]."""
    key = _mix_64(seeds.astype(np.uint64))
    key = _mix_64(key ^ positions.astype(np.uint64))
    key = _mix_64(key ^ steps.astype(np.uint64))
    words = np.stack([key & np.uint64(_LOW_32), key >> np.uint64(32)], axis=1)
    words_64: npt.NDArray[np.int64] = words.astype(np.int64)
    return words_64


def uniform_ids(keys: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """One id [L] from 0 to ``count`` - 1 per row of keys [L, 2], as good as equally likely."""
    # a product below 2^63 for every vocabulary below 2^31
    return (keys[:, 1] * count) >> 32


def _mix_64(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64 (a bijection that spreads every bit)."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
