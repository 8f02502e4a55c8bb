"""Text of single tokens, for places of a canvas that stand side by side.

A character whose bytes are spread over several tokens belongs to the first of them. Knows nothing
of blocks or of how sure tokens are.
"""

from collections.abc import Sequence
from typing import cast

from blockdiff.text.token_texts import REPLACEMENT, ByteCodec, TextCodec


class PieceTexts:
    """Texts of tokens of one vocabulary, control tokens spelled out."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        is_exact = getattr(codec, "is_byte_level", False)
        self._bytes = cast(ByteCodec, codec).token_bytes if is_exact else None
        self._known: dict[int, str] = {}

    def texts(self, token_ids: Sequence[int | None]) -> list[str | None]:
        """A text for every token, None for None; side by side they read as the tokens decode.

        Bytes that make no character, because the rest is not there (yet), show as U+FFFD.
        """
        texts = [None if token_id is None else self._alone(token_id) for token_id in token_ids]
        start = 0
        while start < len(texts):
            end = start
            while end < len(texts) and (text := texts[end]) is not None and REPLACEMENT in text:
                end += 1
            if end - start > 1:
                run = [token_id for token_id in token_ids[start:end] if token_id is not None]
                texts[start:end] = self._together(run)
            start = max(end, start + 1)
        return texts

    def _alone(self, token_id: int) -> str:
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._decode_alone(token_id)
        return known

    def _decode_alone(self, token_id: int) -> str:
        if self._bytes is not None:
            return self._bytes(token_id, False).decode("utf-8", "replace")
        # Behind itself, since some vocabularies drop the space before a first word.
        once = self._codec.decode([token_id], skip_special=False)
        twice = self._codec.decode([token_id, token_id], skip_special=False)
        return twice[len(once) :]

    def _together(self, token_ids: Sequence[int]) -> list[str]:
        """Texts of tokens that are no whole characters each."""
        if self._bytes is None:
            joined = self._codec.decode(list(token_ids), skip_special=False)
            return [joined, *[""] * (len(token_ids) - 1)]
        pieces = [self._bytes(token_id, False) for token_id in token_ids]
        owners = [number for number, piece in enumerate(pieces) for _ in piece]
        texts = [""] * len(pieces)
        at = 0
        for character in b"".join(pieces).decode("utf-8", "surrogateescape"):
            # a byte that is part of no character comes as a surrogate of its own
            is_lone = "\udc80" <= character <= "\udcff"
            texts[owners[at]] += REPLACEMENT if is_lone else character
            at += 1 if is_lone else len(character.encode("utf-8"))
        return texts
