"""One call of an op at a production shape. Knows nothing of compilers."""

from collections.abc import Callable
from typing import NamedTuple


class Case(NamedTuple):
    name: str  # op/model or part/rows, for example norm/35b-hidden/T=32
    call: Callable[[], object]
    wants_wgmma: tuple[str, ...] = ()  # kernels whose products must be wgmma on sm_90
