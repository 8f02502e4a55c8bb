"""What a layer's router does with rows, as data, and what comes of it.

Knows norms, rules and where a rank's experts lie; knows nothing of experts' weights.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from blockdiff_kernels.moe.rules import Rule
from blockdiff_kernels.norm.kinds import NormKind


@dataclass(frozen=True, eq=False)
class RowNorm:
    """An RMS norm of rows [R, H]."""

    weight: Tensor | None  # [H]
    eps: float
    kind: NormKind


@dataclass(frozen=True, eq=False)
class RouterPlan:
    """The router of one layer.

    Experts are numbered: E routed ones, then ``shared`` ones that every row uses. Their stack holds
    the routed ones from ``first`` to ``stop`` and all shared ones.
    """

    weight: Tensor  # [E, H], or [E + 1, H]: the last output is the shared experts' gate
    rule: Rule
    norm: RowNorm | None = None  # of the router's own rows; None: they are those of the experts
    logit_scale: float = 1.0
    experts: int = 0  # E
    shared: int = 0
    span: tuple[int, int] | None = None  # first and stop; None: all

    @property
    def is_gated(self) -> bool:
        """Whether the shared experts are weighed by a sigmoid instead of 1."""
        return self.weight.shape[0] > self.experts

    @property
    def here(self) -> tuple[int, int]:
        """First and stop."""
        return self.span or (0, self.experts)

    @property
    def nobody(self) -> int:
        """The number that stands for no expert."""
        return self.experts + self.shared

    @property
    def stacked(self) -> int:
        """Experts in the stack."""
        first, stop = self.here
        return stop - first + self.shared

    @property
    def chosen(self) -> int:
        """Experts of a row."""
        return self.rule.top_k + self.shared


class ExpertGroups(NamedTuple):
    """Entries, pairs of a row and an expert of the stack, sorted by expert and then by row.

    All on the device; sizes are bounds that the host knows.
    """

    rows: Tensor  # [R * chosen] int32 row of each entry
    inverse: Tensor  # [R, chosen] int32 place of each row's entries; -1: the expert is elsewhere
    tiles: Tensor  # [3, bound] int32 expert of the stack, first entry, end; end 0: no such tile
    offsets: Tensor  # [stacked + 1] int32 first entry of each expert
    distinct: Tensor  # [1] int32 experts of the stack that have entries
    tile_rows: int  # entries of a tile at most


class Routing(NamedTuple):
    """What every row uses. Rows from the count on, if one was given, are undefined but for ids."""

    rows: Tensor  # [R, H] that experts get
    weights: Tensor  # [R, chosen] float32
    ids: Tensor  # [R, chosen] int32, the shared experts last; ``nobody`` for padding
    groups: ExpertGroups
