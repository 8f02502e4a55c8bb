"""Projections and experts whose results for a row do not depend on the other rows.

Knows how to run weights in tiles of rows; knows nothing of routing, of layers or of checkpoints.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff.models.layers.experts import DenseExperts, Experts
from blockdiff.models.layers.linear import DenseLinear, Linear, Span, StackedLinear
from blockdiff.models.layers.quantized import ListedExperts
from blockdiff_kernels.moe import experts_by_rank, gated
from blockdiff_kernels.pointwise import STEADY
from blockdiff_kernels.row_tiles import RowTiles

# up to so many experts per chosen one, computing them all costs less than sorting rows by expert
DENSE_PER_CHOSEN = 4


def tiled_linear(own: Linear, tiles: RowTiles) -> Linear:
    """``own`` in tiles; parts of different kinds are run by themselves."""
    if isinstance(own, StackedLinear):
        return StackedLinear([tiled_linear(part, tiles) for part in own.parts])
    return TiledLinear(own, tiles)


def tiled_experts(own: Experts, tiles: RowTiles) -> Experts:
    """``own`` in tiles."""
    if isinstance(own, DenseExperts):
        return TiledExperts(own, tiles)
    assert isinstance(own, ListedExperts), "experts are dense or listed"
    return TiledListedExperts(own, tiles)


class TiledLinear(Linear):
    """A projection run in tiles of rows."""

    def __init__(self, own: Linear, tiles: RowTiles) -> None:
        self.own = own
        self.tiles = tiles
        self.out_features, self.in_features = own.out_features, own.in_features
        self._key = _shape_key(own)

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, in] -> [R, out]."""
        return self.tiles.run(self._key, self.own, x)

    def rows(self, spans: Sequence[Span]) -> Linear:
        """The outputs of ``spans``, laid end to end."""
        return tiled_linear(self.own.rows(spans), self.tiles)

    def columns(self, start: int, stop: int) -> Linear:
        """The part of the product that inputs ``start`` to ``stop`` contribute."""
        return tiled_linear(self.own.columns(start, stop), self.tiles)

    def join(self, others: Sequence["TiledLinear"]) -> "TiledLinear":
        """One projection with the outputs of this one, then those of ``others``."""
        return TiledLinear(self.own.join([other.own for other in others]), self.tiles)

    @property
    def kind(self) -> object:
        """Projections of equal kind can be joined."""
        return TiledLinear, self.own.kind


class TiledExperts(Experts):
    """Dense experts: all of them for every row if they are few, else one by one.

    Which of the two it is depends on the model, never on the rows.
    """

    def __init__(self, own: DenseExperts, tiles: RowTiles) -> None:
        count, inner, hidden = own.down.shape
        self.own = own
        self.count = count
        self.tiles = tiles
        self._gate_up = TiledLinear(DenseLinear(own.gate_up.view(-1, hidden)), tiles)
        self._down = TiledLinear(DenseLinear(own.down.view(-1, hidden).t()), tiles)
        self._key = ("expert", count, inner, hidden)

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Weighted sum of each row's experts: x [R, H] -> [R, H]."""
        if self.count > DENSE_PER_CHOSEN * ids.shape[1]:
            return experts_by_rank(x, weights, ids, self.count, self._apply)
        dense = weights.new_zeros(x.shape[0], self.count + 1).scatter(1, ids, weights)
        # [R, E, 2, I]
        gate, up = self._gate_up(x).view(x.shape[0], self.count, 2, -1).unbind(2)
        act = gated(gate, up, self.own.activation, STEADY)
        return self._down((act * dense[:, : self.count, None].to(x.dtype)).flatten(1))

    def _apply(self, expert: int, x: Tensor) -> Tensor:
        own = self.own

        def mlp(rows: Tensor) -> Tensor:
            gate, up = functional.linear(rows, own.gate_up[expert]).chunk(2, dim=-1)
            return gated(gate, up, own.activation, STEADY) @ own.down[expert]

        return self.tiles.run(self._key, mlp, x)


class TiledListedExperts(ListedExperts):
    """Experts as separate projections, each run in tiles."""

    def __init__(self, own: ListedExperts, tiles: RowTiles) -> None:
        super().__init__(
            [tiled_linear(part, tiles) for part in own.gate_up],
            [tiled_linear(part, tiles) for part in own.down],
            own.activation,
        )

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Weighted sum of each row's experts: x [R, H] -> [R, H]."""
        return experts_by_rank(x, weights, ids, self.count, self._apply)

    def _apply(self, expert: int, x: Tensor) -> Tensor:
        gate, up = self.gate_up[expert](x).chunk(2, dim=-1)
        return self.down[expert](gated(gate, up, self.activation, STEADY))


def _shape_key(own: Linear) -> Hashable:
    if isinstance(own, DenseLinear):
        layout = torch.Tensor.is_contiguous(own.weight)
        return "dense", own.out_features, own.in_features, layout
    return own.kind, own.out_features, own.in_features
