"""From a weight to quantised values and scales: nearest value, symmetric, no data needed.

Scales are bfloat16 numbers, so that files and packed products hold them exactly. Deterministic.
Knows nothing of checkpoints.
"""

import torch
from torch import Tensor

FP8_MAX = 448.0


def quantize_int(weight: Tensor, bits: int, group: int | None = None) -> tuple[Tensor, Tensor]:
    """weight [out, in] -> int8 values [out, in] in the range of ``bits``, scale [out, groups].

    ``group`` columns share a scale and divide the columns; None: all of a row. The scale is the
    smallest that covers the group, whose range reaches one further below zero than above.
    """
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    grouped = _grouped(weight, group)
    scale = torch.maximum(grouped.amax(-1) / high, grouped.amin(-1) / low)
    scale = _stored(scale)
    values = (grouped / scale.unsqueeze(-1)).round().clamp(low, high)
    return values.to(torch.int8).view(weight.shape), scale


def quantize_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [out, in] -> float8_e4m3fn values [out, in], scale [out, 1]."""
    wide = weight.float()
    scale = _stored(wide.abs().amax(-1, keepdim=True) / FP8_MAX)
    values = (wide / scale).clamp(-FP8_MAX, FP8_MAX)
    return values.to(torch.float8_e4m3fn), scale


def _grouped(weight: Tensor, group: int | None) -> Tensor:
    """[out, groups, columns of a group] float32."""
    rows, columns = weight.shape
    group = columns if group is None else group
    assert columns % group == 0, "groups divide the columns"
    return weight.float().view(rows, -1, group)


def _stored(scale: Tensor) -> Tensor:
    """The nearest bfloat16, as float32; a group of zeros gets 1."""
    rounded = scale.bfloat16().float()
    return torch.where(rounded > 0, rounded, torch.ones_like(rounded))
