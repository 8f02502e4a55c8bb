"""What every constraint of an output offers, and how several of one request work together.

Knows nothing of grammars, slots or rounds.
"""

import functools
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint32]


class Constraint(Protocol):
    """State of one output, which begins empty. Methods raise RequestError when it is too costly."""

    def check(self, token_ids: Sequence[int]) -> int:
        """How many of ``token_ids`` may follow the tokens taken so far."""
        ...

    def push(self, token_ids: Sequence[int]) -> int:
        """Take tokens; how many of them it allows. The state advances by those only."""
        ...

    def allowed(self) -> Bits:
        """[ceil(V / 32)]: what may come next, token t is bit t % 32 of word t // 32.

        End tokens have no part in it.
        """
        ...

    def forced(self) -> list[int]:
        """Tokens that must come next however the output goes on; may be fewer than there are."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the output may end here."""
        ...

    @property
    def must_end(self) -> bool:
        """Whether nothing but an end may follow."""
        ...


class All:
    """Several constraints as one."""

    def __init__(self, parts: Sequence[Constraint]) -> None:
        self._parts = parts

    def check(self, token_ids: Sequence[int]) -> int:
        """See ``Constraint``."""
        count = len(token_ids)
        for part in self._parts:
            count = part.check(token_ids[:count])
        return count

    def push(self, token_ids: Sequence[int]) -> int:
        """See ``Constraint``."""
        count = self.check(token_ids)
        for part in self._parts:
            taken = part.push(token_ids[:count])
            assert taken == count, "a constraint refuses what it has just allowed"
        return count

    def allowed(self) -> Bits:
        """See ``Constraint``."""
        return functools.reduce(np.bitwise_and, [part.allowed() for part in self._parts])

    def forced(self) -> list[int]:
        """See ``Constraint``."""
        return next((tokens for part in self._parts if (tokens := part.forced())), [])

    @property
    def is_complete(self) -> bool:
        """See ``Constraint``."""
        return all(part.is_complete for part in self._parts)

    @property
    def must_end(self) -> bool:
        """See ``Constraint``."""
        return any(part.must_end for part in self._parts)
