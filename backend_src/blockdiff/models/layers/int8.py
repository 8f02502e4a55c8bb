"""Projections and experts with int8 weights whose activations become int8 too, row by row.

Knows which kind of product runs; knows nothing of files or formats.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.linear import Linear
from blockdiff.models.layers.quantized import ListedExperts, QuantizedLinear
from blockdiff_kernels.int8_rows import Int8Weight, int8_linear, pack
from blockdiff_kernels.moe import int8_experts
from blockdiff_kernels.projection import Source


class Int8Linear(QuantizedLinear):
    """A projection that is cut and joined first, then packed by loading or by its first use."""

    def __init__(self, values: Tensor, scale: Tensor) -> None:
        """values int8 [out, in], scale [out, 1] float32."""
        super().__init__(values, scale)
        self._weight: Int8Weight | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, in] -> [R, out]."""
        return int8_linear(x, self.pack())

    def of(self, source: Source, residual: Tensor | None = None) -> Tensor:
        """See ``Linear``."""
        return Linear.of(self, source, residual)

    def write(self, y: Tensor, source: Source, residual: Tensor | None = None) -> None:
        """See ``Linear``."""
        Linear.write(self, y, source, residual)

    def pack(self) -> Int8Weight:
        """The weight, packed; from now on the projection can only be applied."""
        if self._weight is None:
            self._weight = pack(*self._own())
            self.values = self.scale = None
        return self._weight


class Int8Experts(ListedExperts):
    """Experts of one width, whose rows become int8 before they are sorted."""

    def __init__(
        self, gate_up: Sequence[Int8Linear], down: Sequence[Int8Linear], activation: str
    ) -> None:
        super().__init__(gate_up, down, activation)
        self._both = tuple(gate_up), tuple(down)

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Weighted sum of each row's experts: x [R, H] -> [R, H]."""
        gate_up, down = ([own.pack() for own in each] for each in self._both)
        return int8_experts(x, weights, ids, gate_up, down, self.activation)


class Products(NamedTuple):
    """How quantised projections of a model are computed."""

    linear: type[QuantizedLinear]

    def experts(
        self, gate_up: Sequence[Linear], down: Sequence[Linear], activation: str
    ) -> Experts:
        """Experts of such projections, and of others among them."""
        first = [own for own in gate_up if isinstance(own, Int8Linear)]
        second = [own for own in down if isinstance(own, Int8Linear)]
        is_uniform = len({own.in_features for own in down}) == 1
        if is_uniform and len(first) == len(second) == len(down):
            return Int8Experts(first, second, activation)
        return ListedExperts(gate_up, down, activation)


WEIGHT_ONLY = Products(QuantizedLinear)
INT8_ROWS = Products(Int8Linear)
