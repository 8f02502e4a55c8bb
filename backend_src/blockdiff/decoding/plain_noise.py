"""The definition of ``blockdiff_kernels.head.noise``, in 64-bit words that never overflow.

What a request draws is a promise to whoever gave its seed: both must give the same bits.
"""

import torch
from torch import Tensor

_LOW_32 = 0xFFFFFFFF
_UNIT = 2.0**-32
# Largest float32 below 1: keeps log1p finite.
_ALMOST_ONE = 1.0 - 2.0**-24


def plain_gumbel_noise(keys: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [L, V] float32 for row keys [L, 2] int64."""
    tokens = torch.arange(vocab_size, device=keys.device, dtype=torch.int64)
    scattered = (tokens * 0x9E3779B1) & _LOW_32
    word = _mix_32(scattered[None, :] ^ keys[:, :1])
    word = _mix_32(word ^ keys[:, 1:])
    uniform = ((word.to(torch.float32) + 0.5) * _UNIT).clamp_(max=_ALMOST_ONE)
    return -torch.log(-torch.log1p(-uniform))


def _mix_32(value: Tensor) -> Tensor:
    """The finaliser of murmur3 on int64 tensors that hold 32-bit words."""
    value = value ^ (value >> 16)
    value = (value * 0x85EBCA6B) & _LOW_32
    value = value ^ (value >> 13)
    value = (value * 0xC2B2AE35) & _LOW_32
    return value ^ (value >> 16)
