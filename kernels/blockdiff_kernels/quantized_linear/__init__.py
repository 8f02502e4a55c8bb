"""Linear projections with quantised weights and activations in high precision.

W[o, i] = values[o, i] * scale[o, i // group],  y = W x,  group = in / scale.shape[1]

``values`` is int8 [out, in]; uint8 [out, in / 2], two 4-bit numbers in a byte, each plus 8 and the
even column in the low half; or float8_e4m3fn [out, in]. ``scale`` is float32 [out, groups].

On a CPU with bfloat16 activations, 4-bit weights with 32, 64 or 128 columns in a group and a
multiple of 16 rows, and 8-bit weights for few rows of x, go through torch's packed products;
everything else is dequantised in every call, which costs time but never keeps a second copy. On a
GPU, kernels dequantise tiles of weights on their way to the product.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff_kernels.implementation import CPU, REFERENCE, TRITON, choose
from blockdiff_kernels.projection.sources import Plain, Source
from blockdiff_kernels.quantized_linear import cpu, reference


class Int4Blocks(NamedTuple):
    """4-bit weights in the order the CPU's packed product reads them."""

    values: Tensor
    scale_and_zero: Tensor  # [groups, out, 2] bfloat16
    group: int


def quantized_linear(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """y [R, out] in ``x.dtype`` of x [R, in]; see the package for ``values`` and ``scale``."""
    chosen = choose("quantized_linear", x.device, (REFERENCE, CPU, TRITON))
    if chosen is TRITON:
        from blockdiff_kernels.quantized_linear import triton

        return triton.quantized_projection(Plain(x), values, scale)
    if chosen is REFERENCE:
        return reference.linear(x, values, scale)
    if values.dtype != torch.uint8 and scale.shape[1] == 1:
        return cpu.linear_by_channel(x, values, scale)
    return cpu.linear_by_group(x, values, scale)


def quantized_projection(
    source: Source,
    values: Tensor,
    scale: Tensor,
    residual: Tensor | None = None,
    y: Tensor | None = None,
) -> Tensor:
    """``residual`` [R, out], if given, plus the projection of the source's rows [R, in].

    ``y`` is written where it is given; it may be columns of a wider tensor.
    """
    if choose("quantized_linear", values.device) is TRITON:
        from blockdiff_kernels.quantized_linear import triton

        return triton.quantized_projection(source, values, scale, residual, y)
    found = quantized_linear(source.rows(), values, scale)
    found = found if residual is None else residual + found
    return found if y is None else y.copy_(found)


def dequantize(values: Tensor, scale: Tensor) -> Tensor:
    """The weight [out, in] float32."""
    return reference.dequantize(values, scale)


def pack_int4(values: Tensor) -> Tensor:
    """int8 [out, in] of numbers from -8 to 7, an even number of columns -> uint8 [out, in / 2]."""
    return reference.pack_int4(values)


def unpack_int4(packed: Tensor) -> Tensor:
    """uint8 [out, in / 2] -> int8 [out, in]."""
    return reference.unpack_int4(packed)


def make_int4_blocks(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Int4Blocks | None:
    """Weights for ``linear_int4_blocks``; None where activations or shapes do not allow it,
    and where the CPU's path was not chosen.

    Scales are rounded to bfloat16, so a weight is as exact as a bfloat16 one.
    """
    rows, group = values.shape[0], 2 * values.shape[1] // scale.shape[1]
    is_possible = values.dtype == torch.uint8 and values.device.type == "cpu"
    if not is_possible or dtype != torch.bfloat16 or rows % 16 or group not in cpu.INT4_GROUPS:
        return None
    if choose("quantized_linear", values.device, (REFERENCE, CPU, TRITON)) is not CPU:
        return None
    return Int4Blocks(*cpu.make_int4_blocks(values, scale), group)


def linear_int4_blocks(x: Tensor, blocks: Int4Blocks) -> Tensor:
    """y [R, out] bfloat16 of x [R, in] bfloat16."""
    return cpu.linear_int4_blocks(x, *blocks)
