"""Strings that an output must not contain, wherever the borders between its tokens lie.

A string is found in the bytes of the output, which for valid UTF-8 is the same as in its text: no
character's bytes begin inside another's. Knows nothing of grammars or rounds.
"""

from collections.abc import Sequence

import numpy as np

from blockdiff.constraints.base import Bits
from blockdiff.constraints.vocabulary import Vocabulary
from blockdiff.errors import RequestError

MAX_BAD_STRINGS = 32
MAX_BAD_STRING_BYTES = 1024
_KEPT_MASKS = 64
_KEPT_STEPS = 1 << 16


def check_bad_strings(strings: Sequence[str], field: str = "bad_strings") -> None:
    """Raise RequestError for the first string that cannot be kept out."""
    if len(strings) > MAX_BAD_STRINGS:
        raise RequestError(
            f"{field}: {len(strings)} strings given; at most {MAX_BAD_STRINGS} are allowed"
        )
    for text in strings:
        if not text:
            raise RequestError(f"{field}: an empty string is not allowed")
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise RequestError(f"{field}: {text[:40]!r} is not valid Unicode text") from error
        if size > MAX_BAD_STRING_BYTES:
            raise RequestError(
                f"{field}: a string of {size} bytes; at most {MAX_BAD_STRING_BYTES} are allowed"
            )
        if "\ufffd" in text:
            raise RequestError(
                f"{field}: {text[:40]!r} holds U+FFFD, which also stands for broken characters; "
                "leave it out"
            )


class BadStrings:
    """An Aho-Corasick automaton over bytes: its state is the longest beginning of a bad string that
    the output ends with."""

    def __init__(self, vocabulary: Vocabulary, strings: Sequence[str]) -> None:
        """``strings``: checked."""
        self._vocabulary = vocabulary
        self._strings = tuple(dict.fromkeys(text.encode() for text in strings))
        # A state is that beginning itself.
        self._next: dict[tuple[bytes, int], bytes | None] = {}
        beginnings = {text[:end] for text in self._strings for end in range(len(text))}
        self._beginnings = frozenset(beginnings)
        self._masks: dict[bytes, Bits] = {}
        self._state = b""

    def check(self, token_ids: Sequence[int]) -> int:
        """See ``Constraint``."""
        return self._run(token_ids)[0]

    def push(self, token_ids: Sequence[int]) -> int:
        """See ``Constraint``."""
        count, self._state = self._run(token_ids)
        return count

    def _run(self, token_ids: Sequence[int]) -> tuple[int, bytes]:
        state, tokens = self._state, self._vocabulary.tokens
        for count, token in enumerate(token_ids):
            after = state
            for byte in tokens[token] if token < len(tokens) else b"":
                found = self._step(after, byte)
                if found is None:
                    return count, state
                after = found
            state = after
        return len(token_ids), state

    def _step(self, state: bytes, byte: int) -> bytes | None:
        key = (state, byte)
        if key not in self._next:
            if len(self._next) >= _KEPT_STEPS:
                self._next.clear()
            text = state + bytes([byte])
            if any(text.endswith(bad) for bad in self._strings):
                self._next[key] = None
            else:
                ends = (text[start:] for start in range(len(text) + 1))
                self._next[key] = next(end for end in ends if end in self._beginnings)
        return self._next[key]

    def allowed(self) -> Bits:
        """See ``Constraint``."""
        found = self._masks.get(self._state)
        if found is None:
            if len(self._masks) >= _KEPT_MASKS:
                self._masks.pop(next(iter(self._masks)))
            found = self._masks[self._state] = self._mask()
        return found

    def _mask(self) -> Bits:
        if not self._state:
            inside = [self._vocabulary.containing(bad) for bad in self._strings]
            return self._vocabulary.all_bits & ~self._vocabulary.bits(np.concatenate(inside))
        # What is bad anywhere, and what completes a string that has begun.
        rests = {
            bad[size:]
            for bad in self._strings
            for size in range(1, min(len(bad), len(self._state) + 1))
            if self._state.endswith(bad[:size])
        }
        found = [self._vocabulary.starting_with(rest) for rest in rests]
        state, self._state = self._state, b""
        anywhere = self.allowed()
        self._state = state
        return anywhere & ~self._vocabulary.bits(np.concatenate(found))

    def forced(self) -> list[int]:
        """See ``Constraint``."""
        return []

    @property
    def is_complete(self) -> bool:
        """See ``Constraint``."""
        return True

    @property
    def must_end(self) -> bool:
        """See ``Constraint``."""
        return False
