"""Projections and experts with quantised weights.

Knows how to cut and join values with their scales; knows nothing of files or formats.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.linear import Linear, Span
from blockdiff_kernels.implementation import TRITON, choose
from blockdiff_kernels.moe import experts_one_by_one, gated
from blockdiff_kernels.moe.stacks import ExpertWeights, filled_up, stack_quantized
from blockdiff_kernels.projection import Source
from blockdiff_kernels.quantized_linear import (
    Int4Blocks,
    linear_int4_blocks,
    make_int4_blocks,
    quantized_linear,
    quantized_projection,
    unpack_int4,
)


class QuantizedLinear(Linear):
    """Values and scales as ``blockdiff_kernels.quantized_linear`` defines them.

    The first call reorders 4-bit values for the packed product where there is one; from then on
    the projection can only be applied.
    """

    def __init__(self, values: Tensor, scale: Tensor) -> None:
        """values int8 or float8 [out, in], or uint8 [out, in / 2]; scale [out, groups] float32."""
        self.values: Tensor | None = values
        self.scale: Tensor | None = scale
        self.per_byte = 2 if values.dtype == torch.uint8 else 1
        self.out_features = values.shape[0]
        self.in_features = values.shape[1] * self.per_byte
        self._blocks: Int4Blocks | None = None
        self._is_used = False

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, in] -> [R, out]."""
        if not self._is_used:
            self._start(x.dtype)
        if self._blocks is not None:
            return linear_int4_blocks(x, self._blocks)
        return quantized_linear(x, *self._own())

    def of(self, source: Source, residual: Tensor | None = None) -> Tensor:
        """See ``Linear``."""
        if self.values is None or choose("quantized_linear", self.values.device) is not TRITON:
            return super().of(source, residual)
        return quantized_projection(source, *self._own(), residual)

    def write(self, y: Tensor, source: Source, residual: Tensor | None = None) -> None:
        """See ``Linear``."""
        if self.values is None:
            super().write(y, source, residual)
        else:
            quantized_projection(source, *self._own(), residual, y)

    def rows(self, spans: Sequence[Span]) -> "QuantizedLinear":
        """The outputs of ``spans``, laid end to end."""
        values, scale = self._own()
        return type(self)(
            torch.cat([values[start:stop] for start, stop in spans]),
            torch.cat([scale[start:stop] for start, stop in spans]),
        )

    def columns(self, start: int, stop: int) -> "QuantizedLinear":
        """The part of the product that inputs ``start`` to ``stop`` contribute.

        A cut inside a group makes all groups smaller, one inside a byte the values 8-bit ones.
        """
        own, scale = self._own()
        values = self._cut_values(own, start, stop)
        if scale.shape[1] == 1:
            return type(self)(values, scale)
        group = self.in_features // scale.shape[1]
        unit = math.gcd(group, start, stop)
        scale = scale.repeat_interleave(group // unit, dim=1)
        return type(self)(values, scale[:, start // unit : stop // unit].contiguous())

    def join(self, others: Sequence["QuantizedLinear"]) -> "QuantizedLinear":
        """One projection with the outputs of this one, then those of ``others``."""
        values, scales = zip(*(own._own() for own in (self, *others)), strict=True)
        return type(self)(torch.cat(values), torch.cat(scales))

    @property
    def kind(self) -> object:
        """Projections of equal kind can be joined."""
        values, scale = self._own()
        return type(self), values.dtype, scale.shape[1]

    def _cut_values(self, own: Tensor, start: int, stop: int) -> Tensor:
        if start % self.per_byte or stop % self.per_byte:
            return unpack_int4(own)[:, start:stop].contiguous()
        return own[:, start // self.per_byte : stop // self.per_byte].contiguous()

    def _own(self) -> tuple[Tensor, Tensor]:
        assert self.values is not None, "a projection is cut and joined before its first use"
        assert self.scale is not None
        return self.values, self.scale

    def _start(self, dtype: torch.dtype) -> None:
        self._is_used = True
        self._blocks = make_int4_blocks(*self._own(), dtype)
        if self._blocks is not None:
            self.values = self.scale = None


class ListedExperts(Experts):
    """Experts as separate projections, whose widths may differ."""

    def __init__(
        self, gate_up: Sequence[Linear], down: Sequence[Linear], activation: str = "silu"
    ) -> None:
        self.gate_up = tuple(gate_up)  # H -> 2I, gate outputs first
        self.down = tuple(down)  # I -> H
        self.count = len(self.down)
        self.activation = activation

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Weighted sum of each row's experts: x [R, H] -> [R, H]."""
        return experts_one_by_one(x, weights, ids, self.count, self._apply)

    def for_kernels(self) -> ExpertWeights | None:
        """See ``Experts``: copies, in one stack each; None for experts of several kinds.

        A wider shared expert is cut into experts of the routed ones' width.
        """
        width, hidden = self.down[0].in_features, self.down[0].out_features
        pairs = []
        for gate_up, down in zip(self.gate_up, self.down, strict=True):
            if not isinstance(gate_up, QuantizedLinear) or not isinstance(down, QuantizedLinear):
                return None
            pairs += _cut(gate_up, down, width)
        both = stack_quantized([pair[0] for pair in pairs], (2 * width, hidden))
        down_too = stack_quantized([pair[1] for pair in pairs], (hidden, width))
        if both is None or down_too is None:
            return None
        return ExpertWeights(both, down_too, self.activation)

    def _apply(self, expert: int, x: Tensor) -> Tensor:
        gate, up = self.gate_up[expert](x).chunk(2, dim=-1)
        return self.down[expert](gated(gate, up, self.activation))


def _cut(
    gate_up: QuantizedLinear, down: QuantizedLinear, width: int
) -> list[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    """Values and scales of an expert's two projections, cut into experts of ``width`` channels.

    The last may be narrower: the up rows then follow its fewer gate rows after rows of zeros.
    """
    own, found = down.in_features, []
    for start in range(0, own, width):
        stop = min(start + width, own)
        parts = [gate_up.rows([(side + start, side + stop)])._own() for side in (0, own)]
        shape = (width, gate_up.in_features)
        values, scales = zip(*(filled_up(*part, shape) for part in parts), strict=True)
        part = down if own == width else down.columns(start, stop)
        found.append(((torch.cat(values), torch.cat(scales)), part._own()))
    return found
