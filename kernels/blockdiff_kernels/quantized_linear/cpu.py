"""Quantised projections through torch's own operations. Knows shapes that those refuse.

Nothing here needs a CPU but the packed products, so that other devices share the rest.
"""

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff_kernels.quantized_linear import reference

INT4_GROUPS = (32, 64, 128)
# the packed 8-bit product reads 16 columns at a time, past the end if there are fewer, and faults
# when these do not start at a multiple of 16 or 32 bytes, as in views and tensors mapped from files
INT8_COLUMNS = 16
INT8_VALUES_ALIGNMENT, INT8_INPUT_ALIGNMENT = 16, 32
# with more rows of x, converting the weight and one dense product is faster
INT8_ROWS = 8


def linear_by_channel(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """values int8 or float8 [out, in], scale [out, 1]: the scale is applied to the outputs."""
    if x.shape[0] <= INT8_ROWS and _suits_int8_product(x, values):
        ones = torch.ones(values.shape[0], dtype=x.dtype)
        y = torch.ops.aten._weight_int8pack_mm(x, values, ones)
    else:
        y = functional.linear(x, values.to(x.dtype))
    return (y * scale.view(-1)).to(x.dtype)


def _suits_int8_product(x: Tensor, values: Tensor) -> bool:
    is_known = values.dtype == torch.int8 and x.dtype == torch.bfloat16 and x.device.type == "cpu"
    return (
        is_known
        and x.shape[1] % INT8_COLUMNS == 0
        and x.is_contiguous()
        and values.is_contiguous()
        and x.data_ptr() % INT8_INPUT_ALIGNMENT == 0
        and values.data_ptr() % INT8_VALUES_ALIGNMENT == 0
    )


def linear_by_group(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """Any ``values``, scale [out, groups]: the weight is built in ``x.dtype`` for this call."""
    return functional.linear(x, reference.dequantize(values, scale).to(x.dtype))


def make_int4_blocks(values: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Packed weight, and [groups, out, 2] bfloat16: scale, and the zero it has no other use for."""
    unsigned = reference.unpack_int4(values).int() + 8
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unsigned, 1)
    both = torch.stack((scale.t(), torch.zeros_like(scale.t())), dim=-1)
    return packed, both.bfloat16().contiguous()


def linear_int4_blocks(x: Tensor, values: Tensor, scale_and_zero: Tensor, group: int) -> Tensor:
    """See the package."""
    y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
        x.contiguous(), values, group, scale_and_zero
    )
    return y
