"""Projections of what a short function gives: y = W source(x), or y = residual + W source(x)

Plain:        source(x) = x
Normed:       source(x) = norm(x)                         one of the package ``norm``
GatedNormed:  source(x, z) = gated_rms_norm(x, z)         head by head
GatedPair:    source(g, u) = activation(g) * u            of rows [g | u]
"""

from torch import Tensor

from blockdiff_kernels.implementation import TRITON, choose
from blockdiff_kernels.projection import reference
from blockdiff_kernels.projection.sources import GatedNormed, GatedPair, Normed, Plain, Source

__all__ = ["GatedNormed", "GatedPair", "Normed", "Plain", "Source", "projection"]


def projection(
    source: Source, weight: Tensor, residual: Tensor | None = None, y: Tensor | None = None
) -> Tensor:
    """y [R, out] in the dtype of the source's rows [R, in]; weight [out, in], residual [R, out].

    ``y`` is written where it is given; it may be columns of a wider tensor.
    """
    if choose("projection", weight.device) is TRITON:
        from blockdiff_kernels.projection import triton

        return triton.projection(source, weight, residual, y)
    found = reference.projection(source, weight, residual)
    return found if y is None else y.copy_(found)
