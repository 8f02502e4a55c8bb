"""The depthwise convolution on a CPU: channels stay last, so that nothing is moved around it.

torch's one-dimensional convolution first lays rows out by channel and gives them back so; the
two-dimensional one, over images of one line, takes and gives rows as they lie. Knows nothing of
layers or caches.
"""

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff_kernels.conv import reference

SUPPORTED = (torch.float32, torch.bfloat16)


def depthwise(extended: Tensor, weight: Tensor) -> Tensor:
    """silu of the valid depthwise correlation of extended [G, T + k - 1, C] with weight [C, k]."""
    if extended.numel() <= reference.SMALL or extended.dtype not in SUPPORTED:
        return reference.depthwise(extended, weight)
    channels, taps = weight.shape
    lines = extended.contiguous().transpose(1, 2).unsqueeze(2)
    mixed = functional.conv2d(lines, weight.view(channels, 1, 1, taps), groups=channels)
    return functional.silu(mixed.squeeze(2).transpose(1, 2), inplace=True)
