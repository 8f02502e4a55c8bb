"""Counter-based Gumbel noise: a pure function of (row key, token id), never of the batch.

Knows nothing of logits, requests or torch's own random generators.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_LOW_32 = 0xFFFFFFFF
_UNIT = 2.0**-32
# Largest float32 below 1: keeps log1p finite.
_ALMOST_ONE = 1.0 - 2.0**-24


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


def _mix_32(value: Tensor) -> Tensor:
    """The finaliser of murmur3 on int64 tensors that hold 32-bit words."""
    value = value ^ (value >> 16)
    value = (value * 0x85EBCA6B) & _LOW_32
    value = value ^ (value >> 13)
    value = (value * 0xC2B2AE35) & _LOW_32
    return value ^ (value >> 16)


def gumbel_noise(keys: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [L, V] float32 for row keys [L, 2] int64."""
    tokens = torch.arange(vocab_size, device=keys.device, dtype=torch.int64)
    scattered = (tokens * 0x9E3779B1) & _LOW_32
    word = _mix_32(scattered[None, :] ^ keys[:, :1])
    word = _mix_32(word ^ keys[:, 1:])
    uniform = ((word.to(torch.float32) + 0.5) * _UNIT).clamp_(max=_ALMOST_ONE)
    return -torch.log(-torch.log1p(-uniform))
