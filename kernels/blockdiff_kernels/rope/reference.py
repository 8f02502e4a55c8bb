"""Plain torch definition of partial, half-split rotary embedding. Knows nothing of layers."""

import torch
from torch import Tensor


def rope_angles(positions: Tensor, rotary_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """See the package docstring."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=positions.device)
    frequencies = 1.0 / theta ** (exponents / rotary_dim)
    angles = positions.to(torch.float32).unsqueeze(-1) * frequencies
    return angles.cos(), angles.sin()


def proportional_angles(
    positions: Tensor, head_dim: int, pairs: int, theta: float
) -> tuple[Tensor, Tensor]:
    """See the package docstring."""
    exponents = torch.arange(0, 2 * pairs, 2, dtype=torch.float32, device=positions.device)
    turning = 1.0 / theta ** (exponents / head_dim)
    frequencies = torch.nn.functional.pad(turning, (0, head_dim // 2 - pairs))
    angles = positions.to(torch.float32).unsqueeze(-1) * frequencies
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See the package docstring."""
    half = cos.shape[-1]
    first, second, rest = x.split_with_sizes((half, half, x.shape[-1] - 2 * half), dim=-1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((turned[0].to(x.dtype), turned[1].to(x.dtype), rest), dim=-1)
