"""Plain torch definition of quantised projections. Knows nothing of checkpoints."""

import torch
from torch import Tensor
from torch.nn import functional


def dequantize(values: Tensor, scale: Tensor) -> Tensor:
    """See the package."""
    if values.dtype == torch.uint8:
        values = unpack_int4(values)
    rows, groups = scale.shape
    weight = values.float().reshape(rows, groups, -1) * scale.unsqueeze(-1)
    return weight.reshape(rows, -1)


def linear(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """y [R, out] in ``x.dtype``, computed in float32."""
    return functional.linear(x.float(), dequantize(values, scale)).to(x.dtype)


def pack_int4(values: Tensor) -> Tensor:
    """See the package."""
    pairs = (values + 8).to(torch.uint8).view(values.shape[0], -1, 2)
    return pairs[..., 0] | (pairs[..., 1] << 4)


def unpack_int4(packed: Tensor) -> Tensor:
    """See the package."""
    halves = torch.stack((packed & 15, packed >> 4), dim=-1)
    return halves.view(packed.shape[0], -1).to(torch.int8) - 8
