"""Counter-based Gumbel noise: a pure function of (row key, token id), never of the batch.

Knows nothing of logits, requests or torch's own random generators.
"""

import torch
from torch import Tensor

_UNIT = 2.0**-32
# Largest float32 below 1: keeps log1p finite.
_ALMOST_ONE = 1.0 - 2.0**-24
# 0x9E3779B1, and the factors of murmur3's finaliser, as signed words
_SCATTER = 0x9E3779B1 - 2**32
_ROUNDS = ((16, 0xFFFF, 0x85EBCA6B - 2**32), (13, 0x7FFFF, 0xC2B2AE35 - 2**32), (16, 0xFFFF, 0))
# words at a time
_TILE = 1 << 18


def gumbel_noise(keys: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [L, V] float32 for row keys [L, 2], 32-bit words in any integers.

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
