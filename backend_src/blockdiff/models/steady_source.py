"""Weights for a model whose results do not depend on the batch, in the place of another source.

Knows nothing of files or of families.
"""

from collections.abc import Sequence

from torch import Tensor

from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.linear import Linear, Span
from blockdiff.models.numerics import SteadyNumerics
from blockdiff.models.source import WHOLE, ExpertNames, Part, WeightSource


class SteadySource:
    """A ``WeightSource`` that gives the weights of another in tiles."""

    def __init__(self, own: WeightSource) -> None:
        self.own = own
        self.numerics = SteadyNumerics()

    def tensor(self, name: str, rows: Sequence[Span] | None = None) -> Tensor:
        """See ``WeightSource``."""
        return self.own.tensor(name, rows)

    def linear(
        self, module: str, rows: Sequence[Span] | None = None, columns: Span | None = None
    ) -> Linear:
        """See ``WeightSource``."""
        return self.numerics.linear(self.own.linear(module, rows, columns))

    def experts(self, names: ExpertNames, part: Part = WHOLE) -> Experts:
        """See ``WeightSource``."""
        return self.numerics.experts(self.own.experts(names, part))
