"""Incremental detokeniser: token ids in, text that will never change out.

Holds back bytes of an unfinished character and any suffix that may still grow into a stop string,
so concatenated deltas equal the one-shot decode (cut exactly before or behind the stop string).
Knows nothing of blocks, requests, reasoning or tool calls.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from blockdiff.text.stop_strings import StopStrings
from blockdiff.text.token_texts import TextCodec, token_texts


class TextDelta(NamedTuple):
    text: str
    """New text, final."""
    stop: str | None
    """The stop string that ended the text, if one did."""
    tokens_used: int
    """How many of the pushed ids are needed, up to and including the one that completes it."""


class TextStream:
    """Turns pushed token ids into settled text and finds the first stop string.

    A stop string counts when it is completed by token number ``min_tokens`` or a later one; the
    first one *completed* wins, and of those completed by the same character the longest. The text
    ends before it, or behind it where ``includes_stop``.
    """

    def __init__(
        self,
        tokenizer: TextCodec,
        stop_strings: Iterable[str] = (),
        skip_special: bool = True,
        min_tokens: int = 0,
        includes_stop: bool = False,
    ) -> None:
        self._pieces = token_texts(tokenizer, skip_special)
        stops = tuple(stop for stop in stop_strings if stop)
        self._stops = StopStrings(stops) if stops else None
        self._includes_stop = includes_stop
        self._min_tokens = min_tokens
        self._pushed = 0
        self._held = ""
        self._is_closed = False

    def push(self, token_ids: Sequence[int], final: bool = False) -> TextDelta:
        """Returns newly settled text; a stop string or ``final`` closes the stream."""
        if self._is_closed:
            return TextDelta("", None, 0)
        parts: list[str] = []
        for used, token_id in enumerate(token_ids, start=1):
            self._pushed += 1
            text, stop = self._settle(self._pieces.push(token_id))
            parts.append(text)
            if stop is not None:
                return TextDelta("".join(parts), stop, used)
        stop = None
        if final:
            text, stop = self._settle(self._pieces.finish())
            parts += [text, self._held]
            self._held = ""
            self._is_closed = True
        return TextDelta("".join(parts), stop, len(token_ids))

    def _settle(self, new_text: str) -> tuple[str, str | None]:
        """Moves what can no longer be part of a stop string out of the held text."""
        if self._stops is None or not new_text:
            return new_text, None
        found = self._stops.push(new_text, self._pushed >= self._min_tokens)
        text = self._held + new_text
        if found is not None:
            end, stop = len(self._held) + found[0], found[1]
            self._held = ""
            self._is_closed = True
            return text[: end if self._includes_stop else end - len(stop)], stop
        settled = len(text) - self._stops.held
        self._held = text[settled:]
        return text[:settled], None


def held_length(text: str, markers: Sequence[str]) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of one of ``markers``."""
    longest = min(len(text), max((len(marker) for marker in markers), default=1) - 1)
    for length in range(longest, 0, -1):
        suffix = text[len(text) - length :]
        if any(len(marker) > length and marker.startswith(suffix) for marker in markers):
            return length
    return 0
