"""Activations made of arithmetic, exp, log1p and tanh. Knows nothing of layers.

Arithmetic is exact to the last bit wherever a number lies, and torch computes these three functions
in vectors only. Products and sums stay apart: a fused one would round once, not twice.
"""

import torch
from torch import Tensor


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def silu(x: Tensor) -> Tensor:
    """See the package."""
    wide = _widened(x)
    return (wide / wide.neg().exp_().add_(1)).to(x.dtype)


def sigmoid(x: Tensor) -> Tensor:
    """See the package."""
    return _widened(x).neg().exp_().add_(1).reciprocal_().to(x.dtype)


def softplus(x: Tensor) -> Tensor:
    """See the package."""
    wide = _widened(x)
    return wide.abs().neg_().exp_().log1p_().add_(wide.clamp_min(0)).to(x.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    """See the package."""
    wide = _widened(x)
    inner = (wide * wide * wide).mul_(0.044715).add_(wide).mul_((2 / torch.pi) ** 0.5)
    return inner.tanh_().add_(1).mul_(wide).mul_(0.5).to(x.dtype)
