"""Calls of every op at the sizes of one model: a module each, with its ``cases``."""

from collections.abc import Callable, Sequence

from perf.gpu.case import OpCase
from perf.gpu.cases import denoise, head, norm, projection
from perf.gpu.sizes import Sizes

CASES: dict[str, Callable[[Sizes, Sequence[int]], list[OpCase]]] = {
    "denoise": denoise.cases,
    "head": head.cases,
    "norm": norm.cases,
    "projection": projection.cases,
}


def all_cases(sizes: Sizes, rows: Sequence[int], ops: Sequence[str]) -> list[OpCase]:
    """Those of ``ops``, in their order, at each number of rows."""
    return [case for op in ops for case in CASES[op](sizes, rows)]
