"""What a projection reads: rows as they are, or rows that a short function gives.

A source names its function, so that a kernel can compute it where it reads. Knows nothing of
weights.
"""

from typing import NamedTuple

from torch import Tensor

from blockdiff_kernels.moe import gated
from blockdiff_kernels.norm import gated_rms_norm, norm
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.pointwise import FAST, Pointwise


class Plain(NamedTuple):
    """The rows themselves."""

    x: Tensor  # [R, in]

    @property
    def like(self) -> Tensor:
        """Something with as many rows, of their dtype and on their device."""
        return self.x

    def rows(self) -> Tensor:
        """[R, in]."""
        return self.x


class Normed(NamedTuple):
    """Rows after an RMS norm."""

    x: Tensor  # [R, in]
    weight: Tensor  # [in]
    eps: float
    kind: NormKind

    @property
    def like(self) -> Tensor:
        """Something with as many rows, of their dtype and on their device."""
        return self.x

    def rows(self) -> Tensor:
        """[R, in]."""
        return norm(self.x, self.weight, self.eps, self.kind)


class GatedNormed(NamedTuple):
    """Every head after a gated RMS norm of its own, the heads side by side."""

    x: Tensor  # [R, heads, D], often float32
    gate: Tensor  # [R, heads, D], in the dtype of the rows; any strides but the last
    weight: Tensor  # [D]
    eps: float
    pointwise: Pointwise = FAST

    @property
    def like(self) -> Tensor:
        """Something with as many rows, of their dtype and on their device."""
        return self.gate

    def rows(self) -> Tensor:
        """[R, heads * D]."""
        own = gated_rms_norm(self.x, self.gate, self.weight, self.eps, self.pointwise)
        return own.flatten(1)


class GatedPair(NamedTuple):
    """activation(gate) * up of an MLP."""

    gate_up: Tensor  # [R, 2 in], gate outputs first
    activation: str = "silu"  # or gelu_tanh
    pointwise: Pointwise = FAST

    @property
    def like(self) -> Tensor:
        """Something with as many rows, of their dtype and on their device."""
        return self.gate_up

    def rows(self) -> Tensor:
        """[R, in]."""
        gate, up = self.gate_up.chunk(2, dim=-1)
        return gated(gate, up, self.activation, self.pointwise)


Source = Plain | Normed | GatedNormed | GatedPair
