"""Calls of every op at the sizes of one model: a module each, with its ``cases``."""

from collections.abc import Callable, Sequence

from perf.gpu.case import OpCase
from perf.gpu.cases import attention, denoise, embedding, gated_delta, head, moe, norm, projection
from perf.gpu.sizes import Sizes

CASES: dict[str, Callable[[Sizes, Sequence[int]], list[OpCase]]] = {
    "attention": attention.cases,
    "denoise": denoise.cases,
    "embedding": embedding.cases,
    "gated_delta": gated_delta.cases,
    "head": head.cases,
    "moe": moe.cases,
    "norm": norm.cases,
    "projection": projection.cases,
    "self_conditioning": embedding.conditioning_cases,
}


def all_cases(sizes: Sizes, rows: Sequence[int], ops: Sequence[str]) -> list[OpCase]:
    """Those of ``ops``, in their order, at each number of rows."""
    return [case for op in ops for case in CASES[op](sizes, rows)]
