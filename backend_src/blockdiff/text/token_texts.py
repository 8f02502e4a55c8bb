"""What each next token adds to a text: nothing while a character is unfinished, then all of it.

Knows one response's tokens in order; knows nothing of stop strings or markers.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol, cast

REPLACEMENT = "\ufffd"
# A run of undecodable pieces longer than this is settled as it stands (no character is that long).
MAX_PENDING_PIECES = 16


class TextCodec(Protocol):
    """What a text needs of a tokenizer; ``token_bytes`` (optional) makes it exact and fast."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


class ByteCodec(TextCodec, Protocol):
    is_byte_level: bool

    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes: ...


class TokenTexts(Protocol):
    """Texts of the tokens of one response, one after the other."""

    def push(self, token_id: int) -> str:
        """What is certain of the text now and was not before."""
        ...

    def finish(self) -> str:
        """What is left of the text when no more tokens come."""
        ...


def token_texts(codec: TextCodec, skip_special: bool = True) -> TokenTexts:
    """The texts of a response that ``codec`` decodes, exact where it knows tokens as bytes."""
    if getattr(codec, "is_byte_level", False):
        return _BytePieces(cast(ByteCodec, codec), skip_special)
    return _DecodedPieces(codec, skip_special)


class _BytePieces:
    """Decodes tokens that are byte strings, with Python's own incremental UTF-8 decoder."""

    def __init__(self, codec: ByteCodec, skip_special: bool) -> None:
        self._codec = codec
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._codec.token_bytes(token_id, self._skip_special))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


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
        if text.endswith(REPLACEMENT) and is_short:
            return ""
        if len(text) <= len(before):
            # tokens without text, which must not pile up
            if not is_short:
                del self._ids[self._settled :]
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
