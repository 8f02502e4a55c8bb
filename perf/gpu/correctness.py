"""Whether kernels compute what the definition says, in float64. Knows nothing of speed."""

from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff_kernels.implementation import using
from perf.gpu.case import Maker, OpCase, Results


class Verdict(NamedTuple):
    """Of one case."""

    label: str
    error: float  # the largest of the results', relative to the norm; infinite: not even a number
    limit: float
    said: str = ""  # what was raised

    @property
    def is_right(self) -> bool:
        return self.error <= self.limit


def check(case: OpCase, device: torch.device) -> Verdict:
    """Run the kernel in bfloat16 and the definition in float64 on the same numbers."""
    try:
        with using("triton"):
            found = _results(case, Maker(device, torch.bfloat16))
        with using("reference"):
            exact = _results(case, Maker(device, torch.float64))
        error = largest_error(found, exact)
    # whatever a compiler or a driver raises is a red check, not the end of the run
    except Exception as raised:
        text = " ".join(str(raised).split())[:200]
        said = f"{type(raised).__name__}: {text}"
        return Verdict(case.label, float("inf"), case.limit, said)
    return Verdict(case.label, error, case.limit)


def _results(case: OpCase, maker: Maker) -> Results:
    work = case.make(maker)
    return work.look(work.run())


def largest_error(found: Results, exact: Results) -> float:
    """|found - exact| / |exact| of the worst result."""
    assert len(found) == len(exact), "as many results as the definition has"
    return max(_error(own, other) for own, other in zip(found, exact, strict=True))


def _error(found: Tensor, exact: Tensor) -> float:
    assert found.shape == exact.shape, (found.shape, exact.shape)
    norm = exact.double().norm().clamp_min(1e-300)
    error = float((found.double() - exact.double()).norm() / norm)
    return error if error == error else float("inf")
