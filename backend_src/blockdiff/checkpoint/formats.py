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

from blockdiff.checkpoint.regions import Region, Step
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
    steps: tuple[Step, ...] = ()  # of its axes; axes without one are read whole
    is_required: bool = True


class Format(Protocol):
    """One storage. Modules are [rows, columns]."""

    def parts(self, rows: int, columns: int) -> dict[str, StoredPart]:
        """The tensors of a module, by the end of their names; ConfigError for sizes it refuses."""
        ...

    def unit(self, columns: int) -> int:
        """How many columns can only be read together."""
        ...

    def decode(self, module: str, tensors: Mapping[str, Tensor], region: Region) -> Values:
        """Values and scale of a region of whole units, from its places in the module's tensors."""
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
        words = ((rows, -(-columns // per_word)),)
        return {
            "weight_packed": StoredPart(words, ("I32",), ((0, 1), (1, per_word))),
            "weight_scale": StoredPart(scales, FLOATS, ((0, 1), (1, columns // groups))),
            "weight_shape": StoredPart(((2,),), ("I64", "I32"), is_required=False),
        }

    def unit(self, columns: int) -> int:
        """See ``Format``."""
        return math.lcm(32 // self.bits, self.group or 1)

    def decode(self, module: str, tensors: Mapping[str, Tensor], region: Region) -> Values:
        """See ``Format``."""
        packed, scale = tensors["weight_packed"], tensors["weight_scale"].float()
        shape = tensors.get("weight_shape")
        wanted = list(region.shape)
        if shape is not None and shape.tolist() != wanted:
            raise ConfigError(f"{module}.weight_shape is {shape.tolist()}, must be {wanted}")
        words = packed.contiguous().view(torch.uint8)
        scale = scale.view(packed.shape[0], -1)
        if self.bits == 4:
            return words[:, : region.width // 2].contiguous(), scale
        return (words[:, : region.width].to(torch.int16) - 128).to(torch.int8), scale


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
            steps = ((0, down), (1, across))
        elif self.group is not None:
            shapes = ((rows, _groups(columns, self.group)),)
            steps = ((0, 1), (1, self.group))
        else:
            shapes = ((rows, 1), (rows,), (1,), (), (1, 1))
            steps = ((0, 1), (1, columns))
        return {
            "weight": StoredPart(((rows, columns),), (self.dtype,), ((0, 1), (1, 1))),
            self.scale_name: StoredPart(shapes, FLOATS, steps),
        }

    def unit(self, columns: int) -> int:
        """See ``Format``."""
        if self.block is not None:
            return math.gcd(self.block[1], columns)
        return self.group or 1

    def decode(self, module: str, tensors: Mapping[str, Tensor], region: Region) -> Values:
        """See ``Format``."""
        values, scale = tensors["weight"], tensors[self.scale_name].float()
        rows = values.shape[0]
        if self.block is None:
            scale = scale.view(-1, 1) if self.group is None else scale
            return values, scale.expand(rows, -1).contiguous()
        down, across = self.block
        # groups of one size, also where the last block is short
        unit = self.unit(region.shape[1])
        above, before = region.rows[0] % down, region.columns[0] % across // unit
        scale = scale.repeat_interleave(down, 0)[above : above + rows]
        scale = scale.repeat_interleave(across // unit, 1)
        return values, scale[:, before : before + region.width // unit].contiguous()


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
        group = columns // groups
        return {
            "qweight": StoredPart(((columns // 8, rows),), ("I32",), ((1, 8), (0, 1))),
            "qzeros": StoredPart(((groups, rows // 8),), ("I32",), ((1, group), (0, 8))),
            "scales": StoredPart(((groups, rows),), FLOATS, ((1, group), (0, 1))),
            "g_idx": StoredPart(((columns,),), ("I32",), ((1, 1),), is_required=False),
        }

    def unit(self, columns: int) -> int:
        """See ``Format``."""
        return math.lcm(8, self.group or 1)

    def decode(self, module: str, tensors: Mapping[str, Tensor], region: Region) -> Values:
        """See ``Format``."""
        zeros = tensors["qzeros"].contiguous().view(torch.uint8)
        if not bool((zeros == self.zero * 17).all()):
            raise ConfigError(f"{module}.qzeros: zero points are not {self.zero}; only symmetric")
        order = tensors.get("g_idx")
        group = region.shape[1] if self.group is None else self.group
        wanted = torch.arange(*region.columns) // group
        if order is not None and not torch.equal(order.long(), wanted):
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
