"""A constraint of an answer that thinking may come before: it begins where the thinking has ended.

Knows the control tokens of thinking; knows nothing of grammars.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from blockdiff.constraints.base import Bits, Constraint


class ThinkTokens(NamedTuple):
    """Control tokens of thinking, and the tokens of line ends that may follow it."""

    start: int
    end: int
    line_ends: frozenset[int]
    line_end_bits: Bits
    start_bits: Bits
    all_bits: Bits


class _Place(Enum):
    START = auto()
    THINKING = auto()
    AFTER = auto()
    ANSWER = auto()


class AfterThinking:
    """``inner`` for what comes after a think block, and one token of line ends after that."""

    def __init__(self, inner: Constraint, tokens: ThinkTokens, is_open: bool) -> None:
        """``is_open``: the prompt ends inside a think block; otherwise the output may open one."""
        self._inner = inner
        self._tokens = tokens
        self._place = _Place.THINKING if is_open else _Place.START

    def check(self, token_ids: Sequence[int]) -> int:
        """See ``Constraint``."""
        place, count = self._skip(token_ids)
        if place is _Place.THINKING or count == len(token_ids):
            return count
        return count + self._inner.check(token_ids[count:])

    def push(self, token_ids: Sequence[int]) -> int:
        """See ``Constraint``."""
        self._place, count = self._skip(token_ids)
        if self._place is _Place.THINKING or count == len(token_ids):
            return count
        taken = self._inner.push(token_ids[count:])
        if taken:
            self._place = _Place.ANSWER
        return count + taken

    def _skip(self, token_ids: Sequence[int]) -> tuple[_Place, int]:
        """Where the tokens before the answer lead to, and how many they are."""
        place, count = self._place, 0
        for count, token in enumerate(token_ids):
            if place is _Place.START and token == self._tokens.start:
                place = _Place.THINKING
            elif place is _Place.THINKING:
                place = _Place.AFTER if token == self._tokens.end else place
            elif place is _Place.AFTER and token in self._tokens.line_ends:
                place = _Place.ANSWER
            else:
                return place, count
        return place, len(token_ids)

    def allowed(self) -> Bits:
        """See ``Constraint``."""
        if self._place is _Place.THINKING:
            return self._tokens.all_bits
        inner = self._inner.allowed()
        if self._place is _Place.ANSWER:
            return inner
        is_start = self._place is _Place.START
        return inner | (self._tokens.start_bits if is_start else self._tokens.line_end_bits)

    def forced(self) -> list[int]:
        """See ``Constraint``."""
        return self._inner.forced() if self._place is _Place.ANSWER else []

    @property
    def is_complete(self) -> bool:
        """See ``Constraint``."""
        return self._place is not _Place.THINKING and self._inner.is_complete

    @property
    def must_end(self) -> bool:
        """See ``Constraint``."""
        return self._place is not _Place.THINKING and self._inner.must_end
