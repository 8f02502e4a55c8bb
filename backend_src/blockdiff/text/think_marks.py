"""The spellings of think blocks, by what a chat template or a vocabulary shows of them.

Knows no tokens.
"""

from collections.abc import Callable
from typing import NamedTuple


class ThinkMarks(NamedTuple):
    """What stands before and behind a think block."""

    name: str
    start: str
    end: str

    @property
    def control(self) -> frozenset[str]:
        """What of them vocabularies have single tokens for."""
        return frozenset({self.start.partition(">")[0] + ">", self.end})


# Qwen3 and its descendants, SDAR, LLaDA2
TAGS = ThinkMarks("tags", "<think>", "</think>")
# Gemma 4 and DiffusionGemma: a channel with the name "thought"
CHANNEL = ThinkMarks("channel", "<|channel>thought\n", "<channel|>")
THINK_MARKS = {marks.name: marks for marks in (CHANNEL, TAGS)}


def detect_think_marks(template: str | None, has_token: Callable[[str], bool]) -> ThinkMarks | None:
    """How a checkpoint's model marks its think blocks; None: nothing tells that it has any."""
    for marks in THINK_MARKS.values():
        if marks.end in (template or "") or has_token(marks.end):
            return marks
    return None
