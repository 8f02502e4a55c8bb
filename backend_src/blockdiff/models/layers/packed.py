"""Projections and experts whose dense weights are packed for the CPU's matrix library.

Knows when weights are packed and that plain ones are not kept; knows nothing of layers or of
checkpoints.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.linear import DenseLinear, Linear, Span
from blockdiff_kernels.moe import packed_experts
from blockdiff_kernels.packed import is_packed, is_worth_packing, pack, packed_linear, unpack
from blockdiff_kernels.projection import Source, projection


class PackedLinear(Linear):
    """A dense projection that is cut and joined first and packed then, where that is faster.

    Loading packs; a projection that is made later packs itself when it is first applied.
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self.out_features, self.in_features = weight.shape
        self._is_settled = False

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, in] -> [R, out]."""
        if not self._is_settled:
            self.pack()
        if is_packed(self._weight):
            return packed_linear(x, self._weight)
        return functional.linear(x, self._weight)

    def of(self, source: Source, residual: Tensor | None = None) -> Tensor:
        """See ``Linear``."""
        if self._is_settled and not is_packed(self._weight):
            return projection(source, self._weight, residual)
        return super().of(source, residual)

    def pack(self) -> None:
        """Put the packed weight in the place of the plain one, unless that one is faster."""
        sizes = self.out_features, self.in_features
        if not self._is_settled and is_worth_packing(*sizes, self._weight):
            self._weight = pack(self._weight)
        self._is_settled = True

    @property
    def weight(self) -> Tensor:
        """The plain weight [out, in]; a copy where it is packed."""
        return unpack(self._weight) if is_packed(self._weight) else self._weight

    def rows(self, spans: Sequence[Span]) -> "PackedLinear":
        """The outputs of ``spans``, laid end to end."""
        return PackedLinear(DenseLinear(self.weight).rows(spans).weight)

    def columns(self, start: int, stop: int) -> "PackedLinear":
        """The part of the product that inputs ``start`` to ``stop`` contribute."""
        return PackedLinear(DenseLinear(self.weight).columns(start, stop).weight)

    def join(self, others: Sequence["PackedLinear"]) -> "PackedLinear":
        """One projection with the outputs of this one, then those of ``others``."""
        return PackedLinear(torch.cat([self.weight, *(other.weight for other in others)]))


class PackedExperts(Experts):
    """Every expert's two weights packed by themselves."""

    def __init__(
        self, gate_up: Sequence[Tensor], down: Sequence[Tensor], activation: str = "silu"
    ) -> None:
        """Packed weights [2I, H], gate rows first, and [H, I] of every expert."""
        self.gate_up = tuple(gate_up)
        self.down = tuple(down)
        self.count = len(self.down)
        self.activation = activation

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Weighted sum of each row's experts: x [R, H] -> [R, H]."""
        return packed_experts(x, weights, ids, self.gate_up, self.down, self.activation)


class PackedStack:
    """An ``ExpertStack`` that packs an expert when the next one is asked for.

    So there are plain weights of one expert only, all read into the same memory.
    """

    def __init__(self, inner: int, hidden: int, like: Tensor) -> None:
        self._gate_up = like.new_empty(2 * inner, hidden)
        self._down = like.new_empty(hidden, inner)
        self._is_placed = False
        self._packed: list[tuple[Tensor, Tensor]] = []

    def place(self) -> tuple[Tensor, Tensor]:
        """See ``ExpertStack``."""
        self._pack()
        self._is_placed = True
        return self._gate_up.zero_(), self._down.zero_().t()

    def finish(self, activation: str) -> PackedExperts:
        """See ``ExpertStack``."""
        self._pack()
        gate_up, down = zip(*self._packed, strict=True)
        return PackedExperts(gate_up, down, activation)

    def _pack(self) -> None:
        if self._is_placed:
            self._packed.append((pack(self._gate_up), pack(self._down)))
            self._is_placed = False
