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
# 0x9E3779B1, and the factors of murmur3's finaliser, as signed words
_SCATTER = 0x9E3779B1 - 2**32
_ROUNDS = ((16, 0xFFFF, 0x85EBCA6B - 2**32), (13, 0x7FFFF, 0xC2B2AE35 - 2**32), (16, 0xFFFF, 0))
# words at a time
_TILE = 1 << 18


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


def gumbel_noise(keys: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [L, V] float32 for row keys [L, 2] int64; see ``plain_noise``.

    Words are int32 and wrap around; a tile of them at a time, changed in place, stays in a cache.
    """
    words = keys.to(torch.int32)
    tokens = torch.arange(vocab_size, device=keys.device, dtype=torch.int32) * _SCATTER
    noise = torch.empty((len(keys), vocab_size), device=keys.device)
    rows = max(_TILE // vocab_size, 1)
    for tile, key in zip(noise.split(rows), words.split(rows), strict=True):
        word = tokens ^ key[:, :1]
        spare = torch.empty_like(word)
        _mix_32(word, spare)
        _mix_32(word.bitwise_xor_(key[:, 1:]), spare)
        tile.copy_(word.view(torch.uint32)).add_(0.5).mul_(_UNIT).clamp_(max=_ALMOST_ONE)
        tile.neg_().log1p_().neg_().log_().neg_()
    return noise


def _mix_32(word: Tensor, spare: Tensor) -> None:
    """The finaliser of murmur3 on int32 in place; ``spare`` is overwritten."""
    for shift, kept, factor in _ROUNDS:
        torch.bitwise_right_shift(word, shift, out=spare)
        # The shift of a signed word repeats its sign.
        word.bitwise_xor_(spare.bitwise_and_(kept))
        if factor:
            word.mul_(factor)
