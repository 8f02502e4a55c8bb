"""How a checkpoint stores the routed experts of a layer: names, shapes, and where each one lies.

Names are those below what comes before an expert's number, ``layers.0.mlp.experts.`` for example.
Knows nothing of files or of values.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

PARTS = ("gate_proj", "up_proj", "down_proj")
_EXPERTS = ".experts."


class Piece(NamedTuple):
    """One projection of one expert: a stored tensor, and where in it; no place: all of it."""

    name: str
    place: tuple[slice, ...] = ()


class ExpertLayout(Protocol):
    """One way of storing ``count`` experts, each a gated MLP of width ``inner``."""

    def shapes(self, count: int, inner: int, hidden: int) -> dict[str, tuple[int, ...]]:
        """The tensors of a layer's experts."""
        ...

    def pieces(self, expert: int, inner: int) -> tuple[Piece, Piece, Piece]:
        """Gate and up projection [inner, hidden], down projection [hidden, inner].

        A piece with a place has one axis more, of length 1, in front.
        """
        ...

    def is_in(self, names: Collection[str], before: str) -> bool:
        """Whether there are experts so stored among ``names``, which begin with ``before``."""
        ...


@dataclass(frozen=True)
class OneByOne:
    """Three matrices for every expert."""

    def shapes(self, count: int, inner: int, hidden: int) -> dict[str, tuple[int, ...]]:
        """See ``ExpertLayout``."""
        found: dict[str, tuple[int, ...]] = {}
        for expert in range(count):
            gate, up, down = (piece.name for piece in self.pieces(expert, inner))
            found |= {gate: (inner, hidden), up: (inner, hidden), down: (hidden, inner)}
        return found

    def pieces(self, expert: int, inner: int) -> tuple[Piece, Piece, Piece]:
        """See ``ExpertLayout``."""
        gate, up, down = (Piece(f"{expert}.{part}.weight") for part in PARTS)
        return gate, up, down

    def is_in(self, names: Collection[str], before: str) -> bool:
        """See ``ExpertLayout``."""
        return f"{before}0.gate_proj.weight" in names


@dataclass(frozen=True)
class SeparateStacks:
    """A stack of all experts for each of the three projections."""

    end: str = ""  # of the names

    def shapes(self, count: int, inner: int, hidden: int) -> dict[str, tuple[int, ...]]:
        """See ``ExpertLayout``."""
        gate, up, down = (part + self.end for part in PARTS)
        rising, falling = (count, inner, hidden), (count, hidden, inner)
        return {gate: rising, up: rising, down: falling}

    def pieces(self, expert: int, inner: int) -> tuple[Piece, Piece, Piece]:
        """See ``ExpertLayout``."""
        own = (slice(expert, expert + 1),)
        gate, up, down = (Piece(part + self.end, own) for part in PARTS)
        return gate, up, down

    def is_in(self, names: Collection[str], before: str) -> bool:
        """See ``ExpertLayout``."""
        return f"{before}gate_proj{self.end}" in names


@dataclass(frozen=True)
class FusedStacks:
    """A stack of gate and up projections, the gate's rows first, and one of down projections."""

    end: str = ""  # of the names

    def shapes(self, count: int, inner: int, hidden: int) -> dict[str, tuple[int, ...]]:
        """See ``ExpertLayout``."""
        return {
            f"gate_up_proj{self.end}": (count, 2 * inner, hidden),
            f"down_proj{self.end}": (count, hidden, inner),
        }

    def pieces(self, expert: int, inner: int) -> tuple[Piece, Piece, Piece]:
        """See ``ExpertLayout``."""
        own, both = slice(expert, expert + 1), f"gate_up_proj{self.end}"
        gate, up = (slice(start, start + inner) for start in (0, inner))
        down = Piece(f"down_proj{self.end}", (own,))
        return Piece(both, (own, gate)), Piece(both, (own, up)), down

    def is_in(self, names: Collection[str], before: str) -> bool:
        """See ``ExpertLayout``."""
        return f"{before}gate_up_proj{self.end}" in names


ONE_BY_ONE: ExpertLayout = OneByOne()
FUSED: ExpertLayout = FusedStacks()
STACKS: tuple[ExpertLayout, ...] = (
    *(FUSED, FusedStacks(".weight")),
    *(SeparateStacks(), SeparateStacks(".weight")),
)


def layout_below(names: Collection[str], before: str) -> ExpertLayout:
    """The layout of the experts whose names begin with ``before``; one by one if none is there."""
    return next((layout for layout in STACKS if layout.is_in(names, before)), ONE_BY_ONE)


def find_layout(names: Collection[str]) -> ExpertLayout:
    """The layout of a checkpoint of these tensors: that of its first stack of experts."""
    below = {name[: name.index(_EXPERTS) + len(_EXPERTS)] for name in names if _EXPERTS in name}
    found = (layout_below(names, before) for before in sorted(below))
    return next((layout for layout in found if layout in STACKS), ONE_BY_ONE)
