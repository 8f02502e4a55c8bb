"""Plain torch definition of int8 rows and their products. Knows nothing of layers."""

import torch
from torch import Tensor
from torch.nn import functional

LARGEST = 127
# the scale of a row of zeros is not zero
LEAST_MAXIMUM = 1e-30


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """See the package."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp_min(LEAST_MAXIMUM) / LARGEST
    # by way of int32, which is faster than at once
    return (wide / scale).round_().to(torch.int32).to(torch.int8), scale


def product(codes: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """See the package; sums in float32, in which those below 2 ** 24 are exact."""
    return functional.linear(codes.float(), values.float()) * scale
