"""How a model computes: the fastest way, or one that gives a request the same bits in any company.

Chosen once, when the model is made; layers are handed what it gives. Knows nothing of families.
"""

from collections.abc import Hashable

from torch import Tensor

from blockdiff.models.layers.experts import DenseStack, Experts, ExpertStack
from blockdiff.models.layers.linear import DenseLinear, Linear
from blockdiff.models.layers.looks import Look, PlainLook, Sight, make_steady_look
from blockdiff.models.layers.packed import PackedLinear, PackedStack
from blockdiff.models.layers.tiled import tiled_experts, tiled_linear
from blockdiff_kernels.conv import Depthwise, depthwise, steady_depthwise
from blockdiff_kernels.implementation import CPU, REFERENCE, TRITON, choose
from blockdiff_kernels.packed import is_worth_packing, pack
from blockdiff_kernels.pointwise import FAST, STEADY, Pointwise
from blockdiff_kernels.row_tiles import RowFunction, RowTiles


class Numerics:
    """The fastest way."""

    is_deterministic = False
    pointwise: Pointwise = FAST
    depthwise: Depthwise = staticmethod(depthwise)

    def linear(self, own: Linear) -> Linear:
        """The projection as layers use it."""
        return own

    def experts(self, own: Experts) -> Experts:
        """The experts as layers use them."""
        return own

    def stack(self, total: int, inner: int, hidden: int, like: Tensor) -> ExpertStack:
        """Where a layer's experts are read into; ``like`` has the device and the dtype."""
        return DenseStack(total, inner, hidden, like)

    def head(self, weight: Tensor) -> Tensor:
        """The output head's weight [V, H], which nothing else uses, as the op ``head`` reads it."""
        return weight

    def run(self, key: Hashable, function: RowFunction, x: Tensor) -> Tensor:
        """``function(x)`` of rows x [R, ...]; ``key`` as in ``blockdiff_kernels.row_tiles``."""
        return function(x)

    def look(self, sight: Sight) -> Look:
        """The attention of a group of segments."""
        return PlainLook(sight)


class PackedNumerics(Numerics):
    """The fastest way on a CPU: large weights packed, by what is chosen for each op."""

    def linear(self, own: Linear) -> Linear:
        """See ``Numerics``."""
        if isinstance(own, DenseLinear) and _is_cpu_path("projection", own.weight):
            return PackedLinear(own.weight)
        return own

    def stack(self, total: int, inner: int, hidden: int, like: Tensor) -> ExpertStack:
        """See ``Numerics``."""
        if _is_cpu_path("moe", like) and is_worth_packing(2 * inner, hidden, like):
            return PackedStack(inner, hidden, like)
        return super().stack(total, inner, hidden, like)

    def head(self, weight: Tensor) -> Tensor:
        """See ``Numerics``."""
        rows, hidden = weight.shape
        is_packed = _is_cpu_path("head", weight) and is_worth_packing(rows, hidden, weight)
        return pack(weight) if is_packed else weight


def _is_cpu_path(op: str, like: Tensor) -> bool:
    return choose(op, like.device, (REFERENCE, CPU, TRITON)) is CPU


class SteadyNumerics(Numerics):
    """A row's bits depend on its request alone: products run in tiles of rows."""

    is_deterministic = True
    pointwise = STEADY
    depthwise = staticmethod(steady_depthwise)

    def __init__(self) -> None:
        self.tiles = RowTiles()

    def linear(self, own: Linear) -> Linear:
        """See ``Numerics``."""
        return tiled_linear(own, self.tiles)

    def experts(self, own: Experts) -> Experts:
        """See ``Numerics``."""
        return tiled_experts(own, self.tiles)

    def run(self, key: Hashable, function: RowFunction, x: Tensor) -> Tensor:
        """See ``Numerics``."""
        return self.tiles.run(key, function, x)

    def look(self, sight: Sight) -> Look:
        """See ``Numerics``."""
        return make_steady_look(sight, self.tiles)


PLAIN = Numerics()
PACKED = PackedNumerics()
