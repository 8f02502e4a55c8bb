"""Where a family gets its weights from: by name, whole or in part, whatever they are stored as.

Families ask; a source reads, converts, quantises or cuts. Knows nothing of files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.linear import Linear, Span
from blockdiff.models.numerics import Numerics

# rank and ways: the rank-th of so many equal parts
Part = tuple[int, int]
WHOLE: Part = (0, 1)


@dataclass(frozen=True)
class ExpertNames:
    """Names and sizes of one layer's experts."""

    routed: str  # what comes before an expert's number, or before the name of a stack of them
    count: int
    inner: int  # width of one expert
    shared: str | None = (
        None  # what comes before the names of the shared expert; None: there is none
    )
    activation: str = "silu"  # a name of ``blockdiff_kernels.moe``


class WeightSource(Protocol):
    """Weights by canonical name, on the model's device. Only what is asked for is read."""

    @property
    def numerics(self) -> Numerics:
        """How the model computes, projections that it makes of tensors included."""
        ...

    def tensor(self, name: str, rows: Sequence[Span] | None = None) -> Tensor:
        """A tensor in high precision, or its ``rows`` (of the first axis) laid end to end."""
        ...

    def linear(
        self, module: str, rows: Sequence[Span] | None = None, columns: Span | None = None
    ) -> Linear:
        """The projection of ``module`` (its name without ``.weight``), or part of it.

        ``rows`` are outputs, laid end to end; ``columns`` are inputs.
        """
        ...

    def experts(self, names: ExpertNames, part: Part = WHOLE) -> Experts:
        """A layer's routed experts, then its shared one cut into experts of the same width.

        The last slice of the shared expert is filled up with zeros, whose silu(0) * 0 adds
        nothing. With ``part`` there are only that part of the routed experts, by number, and of
        the shared one's inner channels, whose output is then a summand of the whole one's.
        """
        ...
