"""Parts of a module [rows, columns], and where they lie in the tensors that it is stored as.

Knows shapes; knows nothing of files or of what the numbers mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

Span = tuple[int, int]
# which axis of the module (0 rows, 1 columns), and how many of its places one index stands for
Step = tuple[int, int]


@dataclass(frozen=True)
class Region:
    """Some neighbouring rows and columns of a module of ``shape``."""

    shape: tuple[int, int]
    rows: Span
    columns: Span

    @property
    def width(self) -> int:
        return self.columns[1] - self.columns[0]

    def widened(self, unit: int) -> "Region":
        """The least region around this one that begins and ends with whole ``unit`` columns."""
        start, stop = self.columns
        last = min(-(-stop // unit) * unit, self.shape[1])
        return replace(self, columns=(start // unit * unit, last))

    def place(self, steps: Sequence[Step], shape: Sequence[int]) -> tuple[slice, ...]:
        """Where the region lies in a tensor of ``shape`` whose axes are ``steps``, at least.

        An axis of length 1 is there for the whole module.
        """
        spans = (self.rows, self.columns)
        found = []
        for (axis, step), length in zip(steps, shape, strict=False):
            start, stop = spans[axis]
            found.append(slice(start // step, -(-stop // step)) if length > 1 else slice(0, 1))
        return tuple(found)


def whole(shape: tuple[int, int]) -> Region:
    """All of a module."""
    return Region(shape, (0, shape[0]), (0, shape[1]))
