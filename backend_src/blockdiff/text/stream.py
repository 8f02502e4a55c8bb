"""Incremental detokeniser: token ids in, text that will never change out.

Holds back bytes of an unfinished character and any suffix that may still grow into a stop string,
so concatenated deltas equal the one-shot decode (cut exactly before the stop string).
Knows nothing of blocks, requests, reasoning or tool calls.
"""

import codecs
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

REPLACEMENT = "\ufffd"
# A run of undecodable pieces longer than this is settled as it stands (no character is that long).
MAX_PENDING_PIECES = 16


class TextCodec(Protocol):
    """What a stream needs of a tokenizer; ``token_bytes`` (optional) makes it exact and fast."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


class TextDelta(NamedTuple):
    text: str
    """New text, final."""
    stop: str | None
    """The stop string that ended the text, if one did."""
    tokens_used: int
    """How many of the pushed ids are needed, up to and including the one that completes it."""


class _BytePieces:
    """Decodes tokens that are byte strings, with Python's own incremental UTF-8 decoder."""

    def __init__(self, codec: "ByteCodec", skip_special: bool) -> None:
        self._codec = codec
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._codec.token_bytes(token_id, self._skip_special))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteCodec(TextCodec, Protocol):
    is_byte_level: bool

    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes: ...


class _DecodedPieces:
    """Decodes any tokenizer by decoding with left context and emitting the difference.

    Invariant: text of ``_ids[:_settled]`` has been emitted and stays as left context, so that
    word-start conventions (leading spaces) are those of the one-shot decode.
    """

    def __init__(self, codec: TextCodec, skip_special: bool) -> None:
        self._codec = codec
        self._skip_special = skip_special
        self._ids: list[int] = []
        self._settled = 0

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        before, text = self._texts()
        is_short = len(self._ids) - self._settled < MAX_PENDING_PIECES
        if (text.endswith(REPLACEMENT) and is_short) or len(text) <= len(before):
            return ""
        delta = text[len(before) :]
        # Keep only the piece just settled as context: its text is clean at both ends.
        self._ids = self._ids[self._settled :]
        self._settled = len(self._ids)
        return delta

    def finish(self) -> str:
        before, text = self._texts()
        self._settled = len(self._ids)
        return text[len(before) :]

    def _texts(self) -> tuple[str, str]:
        before = self._codec.decode(self._ids[: self._settled], self._skip_special)
        return before, self._codec.decode(self._ids, self._skip_special)


class TextStream:
    """Turns pushed token ids into settled text and finds the first stop string.

    A stop string counts when it is completed by token number ``min_tokens`` or a later one; the
    first one *completed* wins, and of those completed by the same character the longest.
    """

    def __init__(
        self,
        tokenizer: TextCodec,
        stop_strings: Iterable[str] = (),
        skip_special: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._pieces: _BytePieces | _DecodedPieces
        if getattr(tokenizer, "is_byte_level", False):
            self._pieces = _BytePieces(tokenizer, skip_special)  # type: ignore[arg-type]
        else:
            self._pieces = _DecodedPieces(tokenizer, skip_special)
        self._stops = tuple(stop for stop in stop_strings if stop)
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
        if not self._stops or not new_text:
            return new_text, None
        text = self._held + new_text
        if self._pushed >= self._min_tokens:
            found = _first_completed(text, self._stops, len(self._held))
            if found is not None:
                start, stop = found
                self._held = ""
                self._is_closed = True
                return text[:start], stop
        hold = held_length(text, self._stops)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold], None


def held_length(text: str, markers: Sequence[str]) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of one of ``markers``."""
    longest = min(len(text), max((len(marker) for marker in markers), default=1) - 1)
    for length in range(longest, 0, -1):
        suffix = text[len(text) - length :]
        if any(len(marker) > length and marker.startswith(suffix) for marker in markers):
            return length
    return 0


def _first_completed(text: str, stops: Sequence[str], seen: int) -> tuple[int, str] | None:
    """Start and spelling of the match that ends first beyond the ``seen`` leading characters."""
    ends = [
        (start + len(stop), start, stop)
        for stop in stops
        if (start := text.find(stop, max(0, seen - len(stop) + 1))) >= 0
    ]
    if not ends:
        return None
    _, start, stop = min(ends)
    return start, stop
