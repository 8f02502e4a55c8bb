"""What rows of segments see and where it lies, for attention over flat rows. Computes nothing."""

from typing import NamedTuple

from torch import Tensor


class Past(NamedTuple):
    """Committed keys and values, which are only read."""

    keys: Tensor  # [Hkv, pages, page_length, D], contiguous
    values: Tensor
    pages: Tensor | None
    """[G, P] int32 in order of position, P * page_length >= the contexts; None: the pages are
    rings by state line, whose place p % page_length has position p."""


class Sight(NamedTuple):
    """Which keys a row of a segment sees besides those that its window hides."""

    is_causal: bool  # own rows up to itself, or of its block and those before; else all own rows
    block_lengths: Tensor | None = None  # [G] int32 for causal rows: of a grid anchored at 0
    window: int | None = (
        None  # for rings; a causal row sees p > i - window, others p > context - window
    )
