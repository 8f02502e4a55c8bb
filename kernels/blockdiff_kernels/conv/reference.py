"""Plain torch definitions of the depthwise convolutions. Knows nothing of layers or caches."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff_kernels.pointwise import STEADY

# extended [G, T + k - 1, C], weight [C, k] -> [G, T, C]
Depthwise = Callable[[Tensor, Tensor], Tensor]

# inputs up to this many numbers: products of windows beat the fixed cost of a convolution call
SMALL = 65536


def depthwise(extended: Tensor, weight: Tensor) -> Tensor:
    """silu of the valid depthwise correlation of extended [G, T + k - 1, C] with weight [C, k]."""
    channels, taps = weight.shape
    # cuDNN convolutions round float32 to tf32, so only the CPU takes that route
    if extended.numel() <= SMALL or extended.is_cuda:
        windows = extended.unfold(1, taps, 1).transpose(2, 3)
        return functional.silu((windows * weight.t()).sum(2))
    mixed = functional.conv1d(extended.transpose(1, 2), weight.unsqueeze(1), groups=channels)
    return functional.silu(mixed).transpose(1, 2)


def steady_depthwise(extended: Tensor, weight: Tensor) -> Tensor:
    """``depthwise`` tap by tap, so that a row's bits depend on its own inputs alone."""
    compute = torch.promote_types(extended.dtype, torch.float32)
    rows, taps = extended.shape[1] - weight.shape[1] + 1, weight.to(compute).unbind(1)
    wide = extended.to(compute)
    mixed = wide[:, :rows] * taps[0]
    for place, tap in enumerate(taps[1:], start=1):
        mixed += wide[:, place : place + rows] * tap
    return STEADY.silu(mixed).to(extended.dtype)


def causal_conv(
    u: Tensor,
    tail: Tensor,
    weight: Tensor,
    lengths: Tensor | None = None,
    mix: Depthwise = depthwise,
) -> tuple[Tensor, Tensor]:
    """See the package docstring."""
    extended = torch.cat((tail.to(u.dtype), u), dim=1)
    if lengths is None:
        new_tail = extended[:, u.shape[1] :]
    else:
        steps = torch.arange(tail.shape[1], device=u.device)
        index = (lengths.unsqueeze(1) + steps).unsqueeze(-1).expand(-1, -1, u.shape[2])
        new_tail = extended.gather(1, index)
    return mix(extended, weight), new_tail


def preview_conv(
    u: Tensor,
    tail: Tensor,
    weight: Tensor,
    right_weight: Tensor,
    mask: Tensor | None = None,
    mix: Depthwise = depthwise,
) -> Tensor:
    """See the package docstring."""
    if mask is not None:
        u = u.masked_fill(~mask.unsqueeze(-1), 0)
    right = u.new_zeros(u.shape[0], right_weight.shape[1], u.shape[2])
    extended = torch.cat((tail.to(u.dtype), u, right), dim=1)
    return mix(extended, torch.cat((weight, right_weight), dim=1))


def mirrored_taps(weight: Tensor) -> Tensor:
    """See the package docstring."""
    return weight[:, :-1].flip(1)
