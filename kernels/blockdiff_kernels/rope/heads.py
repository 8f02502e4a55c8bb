"""What a projected row holds, how its heads are normed and where its keys and values are kept.

Knows nothing of how that is computed.
"""

from enum import Enum
from typing import NamedTuple

from torch import Tensor


class Scaling(Enum):
    """How the weight of a norm multiplies; see ``blockdiff_kernels.norm``."""

    ZERO_CENTRED = "zero-centred"
    SCALED = "scaled"
    PLAIN = "plain"


class HeadNorm(NamedTuple):
    weight: Tensor  # [Hq + Hkv, D]
    eps: float
    scaling: Scaling


class Heads(NamedTuple):
    """Of a projected row [N, D]: query heads, key heads, then others."""

    query: int
    kv: int
    value: int  # the first value head; keys serve as values too where it is ``query``
    norms_value: bool = False  # values get a norm without weight


class Store(NamedTuple):
    """Where keys and values of rows go."""

    keys: Tensor  # [Hkv, pages, page_length, D], contiguous
    values: Tensor
    written: Tensor  # [R] int64 place in pages laid end to end; negative: not written
