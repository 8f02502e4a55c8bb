"""Splits generated text into the think block and the answer, delta by delta.

A think block counts only at the start of the answer (or when the prompt has opened it); markers
later on are ordinary text. One that begins where the prompt has just closed one is split off too:
a model may think although it was told not to. Newlines next to the markers belong to neither part.
Knows nothing of tokens or tool calls.
"""

from enum import Enum, auto
from typing import NamedTuple

from blockdiff.text.stream import held_length
from blockdiff.text.think_marks import TAGS, ThinkMarks
from blockdiff.text.tokenizer import ThinkState


class SplitText(NamedTuple):
    answer: str
    reasoning: str


class _Place(Enum):
    START = auto()
    THINKING = auto()
    AFTER_THINKING = auto()
    ANSWER = auto()


_FIRST_PLACE = {
    ThinkState.OPEN: _Place.THINKING,
    ThinkState.CLOSED: _Place.START,
    ThinkState.UNKNOWN: _Place.START,
}


class ReasoningSplitter:
    """Holds back text that may still turn out to be (part of) a marker."""

    def __init__(self, think: ThinkState, marks: ThinkMarks = TAGS) -> None:
        self._marks = marks
        self._place = _FIRST_PLACE[think]
        self._held = ""
        self._has_reasoning = False

    def push(self, text: str, final: bool = False) -> SplitText:
        """The newly decided text; ``final`` releases what is held back."""
        self._held += text
        reasoning = ""
        if self._place is _Place.START:
            self._leave_start(final)
        if self._place is _Place.THINKING:
            reasoning = self._take_reasoning(final)
        if self._place is _Place.AFTER_THINKING:
            self._held = self._held.lstrip("\n")
            if self._held:
                self._place = _Place.ANSWER
        answer = ""
        if self._place is _Place.ANSWER:
            answer, self._held = self._held, ""
        return SplitText(answer, reasoning)

    def _leave_start(self, final: bool) -> None:
        visible = self._held.lstrip()
        start = self._marks.start
        if visible.startswith(start):
            self._held = visible[len(start) :]
            self._place = _Place.THINKING
        elif final or not start.startswith(visible):
            self._place = _Place.ANSWER

    def _take_reasoning(self, final: bool) -> str:
        if not self._has_reasoning:
            self._held = self._held.lstrip("\n")
        head, mark, tail = self._held.partition(self._marks.end)
        if mark:
            self._place = _Place.AFTER_THINKING
            self._held = tail
            return head.rstrip("\n")
        kept = 0 if final else held_length(head, [self._marks.end])
        settled = head[: len(head) - kept]
        # Newlines may turn out to stand before the end marker.
        settled = settled if final else settled.rstrip("\n")
        self._held = head[len(settled) :]
        self._has_reasoning = self._has_reasoning or bool(settled)
        return settled
