"""Norms of hidden rows; those before projections are computed there."""

from collections.abc import Callable, Sequence

from blockdiff_kernels.norm import rms_norm
from blockdiff_kernels.norm.cost import cost
from perf.gpu.case import Maker, OpCase, Work
from perf.gpu.sizes import Sizes

EPS = 1e-6


def cases(sizes: Sizes, rows: Sequence[int]) -> list[OpCase]:
    """The final norm."""
    width = sizes.hidden
    return [
        OpCase("norm", "hidden", count, _hidden(count, width), cost(count, width)) for count in rows
    ]


def _hidden(rows: int, width: int) -> Callable[[Maker], Work]:
    def make(maker: Maker) -> Work:
        x, weight = maker.normal(rows, width), maker.normal(width, scale=0.1)
        return Work(lambda: [rms_norm(x, weight, EPS)])

    return make
