"""Public storages of quantised projections, read into values and scales.

One class per storage: which tensors a module has, and what they mean. The result is as
``blockdiff_kernels.quantized_linear`` defines it. Knows nothing of files or of families.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from blockdiff.config.quantization import Quantization
from blockdiff.errors import ConfigError

FLOATS = ("F32", "BF16", "F16")
# values and scale
Values = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class StoredPart:
    """What one tensor of a quantised module must look like."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    is_required: bool = True


class Format(Protocol):
    """One storage. Modules are [rows, columns]."""

    def parts(self, rows: int, columns: int) -> dict[str, StoredPart]:
        """The tensors of a module, by the end of their names; ConfigError for sizes it refuses."""
        ...

    def decode(self, module: str, tensors: Mapping[str, Tensor], columns: int) -> Values:
        """Values and scale from the tensors of ``parts`` that are there."""
        ...


@dataclass(frozen=True)
class PackedIntegers:
    """compressed-tensors, pack-quantized: int32 along the inputs, the first in the lowest bits."""

    bits: int  # 4 or 8
    group: int | None

    def parts(self, rows: int, columns: int) -> dict[str, StoredPart]:
        """See ``Format``."""
        per_word, groups = 32 // self.bits, _groups(columns, self.group)
        if self.bits == 4 and columns % 2:
            raise ConfigError(f"has {columns} columns, must have an even number for 4 bits")
        scales = ((rows, groups), (rows,)) if groups == 1 else ((rows, groups),)
        return {
            "weight_packed": StoredPart(((rows, -(-columns // per_word)),), ("I32",)),
            "weight_scale": StoredPart(scales, FLOATS),
            "weight_shape": StoredPart(((2,),), ("I64", "I32"), is_required=False),
        }

    def decode(self, module: str, tensors: Mapping[str, Tensor], columns: int) -> Values:
        """See ``Format``."""
        packed, scale = tensors["weight_packed"], tensors["weight_scale"].float()
        shape = tensors.get("weight_shape")
        wanted = [packed.shape[0], columns]
        if shape is not None and shape.tolist() != wanted:
            raise ConfigError(f"{module}.weight_shape is {shape.tolist()}, must be {wanted}")
        words = packed.contiguous().view(torch.uint8)
        scale = scale.view(packed.shape[0], -1)
        if self.bits == 4:
            return words[:, : columns // 2].contiguous(), scale
        return (words[:, :columns].to(torch.int16) - 128).to(torch.int8), scale


@dataclass(frozen=True)
class PlainValues:
    """int8 or float8 values under the name ``weight``, and scales beside them."""

    dtype: str  # as safetensors writes it
    scale_name: str
    group: int | None = None
    block: tuple[int, int] | None = None

    def parts(self, rows: int, columns: int) -> dict[str, StoredPart]:
        """See ``Format``."""
        if self.block is not None:
            down, across = self.block
            shapes: tuple[tuple[int, ...], ...] = ((-(-rows // down), -(-columns // across)),)
        elif self.group is not None:
            shapes = ((rows, _groups(columns, self.group)),)
        else:
            shapes = ((rows, 1), (rows,), (1,), (), (1, 1))
        return {
            "weight": StoredPart(((rows, columns),), (self.dtype,)),
            self.scale_name: StoredPart(shapes, FLOATS),
        }

    def decode(self, module: str, tensors: Mapping[str, Tensor], columns: int) -> Values:
        """See ``Format``."""
        values, scale = tensors["weight"], tensors[self.scale_name].float()
        rows = values.shape[0]
        if self.block is None:
            scale = scale.view(-1, 1) if self.group is None else scale
            return values, scale.expand(rows, -1).contiguous()
        down, across = self.block
        # groups of one size, also where the last block is short
        unit = math.gcd(across, columns)
        scale = scale.repeat_interleave(down, 0)[:rows]
        scale = scale.repeat_interleave(across // unit, 1)[:, : columns // unit]
        return values, scale.contiguous()


@dataclass(frozen=True)
class Gptq:
    """GPTQ: int32 along the inputs, transposed; symmetric, groups in the inputs' order."""

    group: int | None
    zero: int  # what is stored for the zero point 8

    def parts(self, rows: int, columns: int) -> dict[str, StoredPart]:
        """See ``Format``."""
        groups = _groups(columns, self.group)
        if rows % 8 or columns % 8:
            raise ConfigError("must have multiples of 8 rows and columns for gptq")
        return {
            "qweight": StoredPart(((columns // 8, rows),), ("I32",)),
            "qzeros": StoredPart(((groups, rows // 8),), ("I32",)),
            "scales": StoredPart(((groups, rows),), FLOATS),
            "g_idx": StoredPart(((columns,),), ("I32",), is_required=False),
        }

    def decode(self, module: str, tensors: Mapping[str, Tensor], columns: int) -> Values:
        """See ``Format``."""
        zeros = tensors["qzeros"].contiguous().view(torch.uint8)
        if not bool((zeros == self.zero * 17).all()):
            raise ConfigError(f"{module}.qzeros: zero points are not {self.zero}; only symmetric")
        order = tensors.get("g_idx")
        group = columns if self.group is None else self.group
        if order is not None and not torch.equal(order.long(), torch.arange(columns) // group):
            raise ConfigError(f"{module}.g_idx is not in order; only desc_act false is supported")
        # a transposed word still has the values of one output in the inputs' order
        words = tensors["qweight"].t().contiguous().view(torch.uint8)
        return words, tensors["scales"].float().t().contiguous()


def make_format(own: Quantization) -> Format:
    """The storage that a checkpoint's config declares."""
    if own.method == "gptq":
        return Gptq(own.group, own.gptq_zero)
    if own.is_packed:
        return PackedIntegers(int(own.kind[-1]), own.group)
    dtype = "F8_E4M3" if own.kind == "fp8" else "I8"
    scale = "weight_scale_inv" if own.method == "fp8" else "weight_scale"
    return PlainValues(dtype, scale, own.group, own.block)


def _groups(columns: int, group: int | None) -> int:
    if group is None:
        group = columns
    if columns % group:
        raise ConfigError(f"has {columns} columns, which group size {group} does not divide")
    return columns // group
