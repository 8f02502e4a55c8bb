"""Counts the tokens of the think block of one answer, as they arrive.

A think block counts only at the start of the answer, or where the prompt has opened it: what
``reasoning`` splits off as text is counted here in tokens. The tokens of its marks do not count.
"""

from collections.abc import Sequence
from enum import Enum, auto

from blockdiff.text.stream import held_length
from blockdiff.text.token_texts import TextCodec, token_texts


class _Place(Enum):
    START = auto()
    THINKING = auto()
    ANSWER = auto()


class ThinkTokens:
    """Where the think block of one answer begins and ends. ``start``, ``end``: its marks."""

    def __init__(self, codec: TextCodec, start: str, end: str, is_open: bool) -> None:
        self._texts = token_texts(codec, skip_special=False)
        self._start, self._end = start, end
        self._place = _Place.THINKING if is_open else _Place.START
        self._pushed = 0
        self._held = ""
        # Where in the held text the tokens begin of which it is open whether they are a mark's.
        self._open: list[int] = []
        self.first: int | None = 0 if is_open else None
        """Number of the first token inside the block, from 0; None: none has begun."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing that follows can be part of the block."""
        return self._place is _Place.ANSWER

    def push(self, token_ids: Sequence[int], final: bool = False) -> int:
        """Take the next tokens; how many more are now known to be part of the block.

        ``final``: no more will come, so that the beginning of a mark is none.
        """
        count = 0
        for token_id in token_ids:
            if self.has_ended:
                return count
            self._pushed += 1
            count += self._take(self._texts.push(token_id))
        if final and self._place is _Place.THINKING:
            count += len(self._open)
            self._open = []
        return count

    def _take(self, piece: str) -> int:
        text, self._held = self._held + piece, ""
        if self._place is _Place.THINKING:
            self._open.append(len(text) - len(piece))
            return self._search(text)
        visible = text.lstrip()
        if visible.startswith(self._start):
            self._place, self.first = _Place.THINKING, self._pushed
            return self._search(visible[len(self._start) :])
        if self._start.startswith(visible):
            self._held = text
        else:
            self._place = _Place.ANSWER
        return 0

    def _search(self, text: str) -> int:
        at = text.find(self._end)
        if at >= 0:
            self._place = _Place.ANSWER
            return sum(begin < at for begin in self._open)
        kept = held_length(text, [self._end])
        settled = len(text) - kept
        waiting = [begin - settled for begin in self._open if kept and begin >= settled]
        count = len(self._open) - len(waiting)
        self._held, self._open = text[settled:], waiting
        return count
