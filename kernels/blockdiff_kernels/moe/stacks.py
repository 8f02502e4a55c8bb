"""The experts of a layer as two stacks of weights, in one of several number formats.

Knows shapes and the order of 4-bit numbers in a stack; knows nothing of routing or of files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff_kernels.moe import reference
from blockdiff_kernels.quantized_linear import dequantize, pack_int4, unpack_int4

# columns whose first and second half share the bytes of a stack of 4-bit numbers
LONGEST_SPAN = 128
ZEROS_OF_4_BITS = 0x88


@dataclass(frozen=True, eq=False)
class WeightStack:
    """E matrices [out, in] of one kind.

    ``values`` [E, out, in]: bfloat16 or float32; or int8 or float8_e4m3fn, with a scale. Or uint8
    [E, out, in / 2], with a scale: two 4-bit numbers a byte, each plus 8; in every ``span`` columns
    byte j holds column j in its low half and column j + span / 2 in its high half.
    """

    values: Tensor
    scale: Tensor | None = None  # [E, out, groups] float32

    @property
    def count(self) -> int:
        return self.values.shape[0]

    @property
    def is_int4(self) -> bool:
        return self.values.dtype == torch.uint8

    @property
    def out_features(self) -> int:
        return self.values.shape[1]

    @property
    def in_features(self) -> int:
        return self.values.shape[2] * (2 if self.is_int4 else 1)

    @property
    def span(self) -> int:
        """Of 4-bit numbers."""
        return span_of(self.in_features)

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        assert self.scale is not None
        return self.in_features // self.scale.shape[2]

    def matrix(self, expert: int, dtype: torch.dtype) -> Tensor:
        """One of them as [out, in] of ``dtype``."""
        values = self.values[expert]
        if self.scale is None:
            return values.to(dtype)
        if self.is_int4:
            values = from_spans(values)
        return dequantize(values, self.scale[expert]).to(dtype)


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """y = down (a(gate x) * up x), for each of so many experts of one width."""

    gate_up: WeightStack  # H -> 2I, gate outputs first
    down: WeightStack  # I -> H
    activation: str = "silu"  # or gelu_tanh

    @property
    def count(self) -> int:
        return self.down.count

    def apply(self, expert: int, x: Tensor) -> Tensor:
        """One expert's outputs [r, H] for rows x [r, H]."""
        gate, up = (x @ self.gate_up.matrix(expert, x.dtype).t()).chunk(2, dim=-1)
        acted = reference.gated(gate, up, self.activation)
        return acted @ self.down.matrix(expert, x.dtype).t()


def dense_weights(gate_up: Tensor, down: Tensor, activation: str = "silu") -> ExpertWeights:
    """Of gate_up [E, 2I, H] and down [E, I, H], the layout that ``experts`` takes; no copies."""
    return ExpertWeights(WeightStack(gate_up), WeightStack(down.transpose(1, 2)), activation)


def stack_quantized(
    parts: Sequence[tuple[Tensor, Tensor]], shape: tuple[int, int]
) -> WeightStack | None:
    """Values and scales of projections (see ``quantized_linear``) as one stack.

    Those smaller than ``shape``, rows and columns, are filled up with zeros. None where they are
    not of one kind, or where the kernels have no span or group for them.
    """
    columns = shape[1]
    filled = [filled_up(values, scale, shape) for values, scale in parts]
    kinds = {(values.dtype, values.shape, scale.shape) for values, scale in filled}
    if len(kinds) != 1:
        return None
    values, scale = filled[0]
    group = columns // scale.shape[1]
    is_power = group & (group - 1) == 0 and group >= 16
    if scale.shape[1] > 1 and not is_power or values.dtype == torch.uint8 and columns % 32:
        return None
    own = [to_spans(v) if v.dtype == torch.uint8 else v for v, _ in filled]
    return WeightStack(torch.stack(own), torch.stack([scale for _, scale in filled]))


def filled_up(values: Tensor, scale: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Values and scale with rows and columns of zeros after their own; groups stay as wide."""
    per_byte = 2 if values.dtype == torch.uint8 else 1
    width, groups = values.shape[1] * per_byte, scale.shape[1]
    rows, columns = shape[0] - values.shape[0], shape[1] - width
    if rows == columns == 0:
        return values, scale
    group = width // groups
    zero = ZEROS_OF_4_BITS if per_byte == 2 else 0
    bits = functional.pad(values.view(torch.uint8), (0, columns // per_byte, 0, rows), value=zero)
    more = 0 if groups == 1 else columns // group
    return bits.view(values.dtype), functional.pad(scale, (0, more, 0, rows), value=1.0)


def span_of(width: int) -> int:
    """Columns of a span: the largest power of two that divides ``width``, to a limit."""
    return min(width & -width, LONGEST_SPAN)


def to_spans(packed: Tensor) -> Tensor:
    """uint8 [out, in / 2] with neighbours in a byte -> the same numbers with halves of spans."""
    values = unpack_int4(packed)
    rows, width = values.shape
    halves = values.view(rows, -1, 2, span_of(width) // 2)
    return pack_int4(halves.transpose(2, 3).reshape(rows, width))


def from_spans(packed: Tensor) -> Tensor:
    """The inverse of ``to_spans``."""
    values = unpack_int4(packed)
    rows, width = values.shape
    pairs = values.view(rows, -1, span_of(width) // 2, 2)
    return pack_int4(pairs.transpose(2, 3).reshape(rows, width))
