"""Projections with int8 weights and int8 activations, quantised row by row as they come.

row_scale[r] = max_i |x[r, i]| / 127,  codes[r, i] = round(x[r, i] / row_scale[r])
y[r, o] = (sum_i codes[r, i] values[o, i]) * scale[o] * row_scale[r]

``values`` is int8 [out, in] and ``scale`` float32, as in ``quantized_linear``, whose choice of an
implementation this follows. A row's codes are its own, and sums of integers have no
order: what a row gives depends on no other row. One that holds NaN or infinity gives no finite
number.
"""

from typing import NamedTuple

from torch import Tensor

from blockdiff_kernels.implementation import CPU, REFERENCE, choose
from blockdiff_kernels.int8_rows import cpu, reference


class Int8Rows(NamedTuple):
    """Rows [R, in] as int8 codes and their scale [R, 1] float32."""

    codes: Tensor
    scale: Tensor

    def select(self, places: Tensor) -> "Int8Rows":
        """The rows at ``places`` [N] int64."""
        return Int8Rows(self.codes.index_select(0, places), self.scale.index_select(0, places))

    def finish(self, products: Tensor, like: Tensor) -> Tensor:
        """The rows' scales on their ``products`` [R, out], which are changed, as ``like.dtype``."""
        return products.mul_(self.scale).to(like.dtype)


class Int8Weight(NamedTuple):
    """A weight as ``pack`` gives it: opaque values, and the scale [out] float32."""

    values: Tensor
    scale: Tensor


def quantize_rows(x: Tensor) -> Int8Rows:
    """x [R, in] of any floating dtype; to nearest, ties to even."""
    return Int8Rows(*reference.quantize_rows(x))


def pack(values: Tensor, scale: Tensor) -> Int8Weight:
    """values int8 [out, in] and scale float32 [out, 1], for the implementation that is chosen."""
    if _is_cpu_path(values):
        values = cpu.pack(values)
    return Int8Weight(values, scale.flatten())


def int8_product(codes: Tensor, weight: Int8Weight) -> Tensor:
    """[R, out] float32 before the rows' scales, of codes int8 [R, in]."""
    return (cpu if _is_cpu_path(codes) else reference).product(codes, *weight)


def int8_linear(x: Tensor, weight: Int8Weight) -> Tensor:
    """y [R, out] in ``x.dtype`` of x [R, in]."""
    rows = quantize_rows(x)
    return rows.finish(int8_product(rows.codes, weight), x)


def is_fast() -> bool:
    """Whether this processor has instructions for it; without them it is right, and slow."""
    return cpu.is_exact()


def _is_cpu_path(like: Tensor) -> bool:
    return choose("quantized_linear", like.device, (REFERENCE, CPU)) is CPU and cpu.is_exact()
