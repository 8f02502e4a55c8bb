"""Projections and experts with quantised weights.

Knows how to cut and join values with their scales; knows nothing of files or formats.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.linear import Linear, Span
from blockdiff_kernels.moe import experts_one_by_one, gated
from blockdiff_kernels.quantized_linear import (
    Int4Blocks,
    linear_int4_blocks,
    make_int4_blocks,
    quantized_linear,
)


class QuantizedLinear(Linear):
    """Values and scales as ``blockdiff_kernels.quantized_linear`` defines them.

    The first call reorders 4-bit values for the packed product where there is one; from then on
    the projection can only be applied.
    """

    def __init__(self, values: Tensor, scale: Tensor) -> None:
        """values int8 or float8 [out, in], or uint8 [out, in / 2]; scale [out, groups] float32."""
        self.values: Tensor | None = values
        self.scale = scale
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
        assert self.values is not None
        return quantized_linear(x, self.values, self.scale)

    def rows(self, spans: Sequence[Span]) -> "QuantizedLinear":
        """The outputs of ``spans``, laid end to end."""
        values = torch.cat([self._own()[start:stop] for start, stop in spans])
        return QuantizedLinear(values, torch.cat([self.scale[start:stop] for start, stop in spans]))

    def columns(self, start: int, stop: int) -> "QuantizedLinear":
        """The part of the product that inputs ``start`` to ``stop`` contribute.

        A cut inside a group makes all groups smaller.
        """
        assert start % self.per_byte == 0 and stop % self.per_byte == 0, "bytes are not cut"
        values = self._own()[:, start // self.per_byte : stop // self.per_byte].contiguous()
        if self.scale.shape[1] == 1:
            return QuantizedLinear(values, self.scale)
        group = self.in_features // self.scale.shape[1]
        unit = math.gcd(group, start, stop)
        scale = self.scale.repeat_interleave(group // unit, dim=1)
        return QuantizedLinear(values, scale[:, start // unit : stop // unit].contiguous())

    def join(self, others: Sequence["QuantizedLinear"]) -> "QuantizedLinear":
        """One projection with the outputs of this one, then those of ``others``."""
        values = torch.cat([self._own(), *(other._own() for other in others)])
        return QuantizedLinear(values, torch.cat([self.scale, *(other.scale for other in others)]))

    @property
    def kind(self) -> object:
        """Projections of equal kind can be joined."""
        return QuantizedLinear, self._own().dtype, self.scale.shape[1]

    def _own(self) -> Tensor:
        assert self.values is not None, "a projection is cut and joined before its first use"
        return self.values

    def _start(self, dtype: torch.dtype) -> None:
        self._is_used = True
        self._blocks = make_int4_blocks(self._own(), self.scale, dtype)
        if self._blocks is not None:
            self.values = None


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

    def _apply(self, expert: int, x: Tensor) -> Tensor:
        gate, up = self.gate_up[expert](x).chunk(2, dim=-1)
        return self.down[expert](gated(gate, up, self.activation))
