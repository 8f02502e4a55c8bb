"""Plain torch definition of projections of sources. Knows nothing of layers."""

from torch import Tensor
from torch.nn import functional

from blockdiff_kernels.projection.sources import Source


def projection(source: Source, weight: Tensor, residual: Tensor | None = None) -> Tensor:
    """See the package."""
    y = functional.linear(source.rows(), weight)
    return y if residual is None else residual + y
