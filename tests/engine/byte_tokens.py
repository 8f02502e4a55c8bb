"""A tokenizer over a vocabulary of any size whose tokens are known bytes. Holds no tests."""

from collections.abc import Collection, Sequence

from blockdiff.text import SpecialTokens

PIECES = [
    *(bytes([byte]) for byte in b'{}":,[]0123456789-abcdef \n'),
    b'{"', b'":', b"ab", b"ba", b"12", b"},", b"cde", b"\xc3", b"\xa9", b"a\xc3", b"\xa9b", b"\n\n",
]  # fmt: skip


class ByteTokens:
    """Pieces at the ids that are no control tokens, as often as they fit."""

    is_byte_level = True

    def __init__(
        self, size: int, control: Collection[int], think: tuple[int, int] | None = None
    ) -> None:
        self.control_ids = frozenset(control)
        self.special = SpecialTokens(
            think_start=think[0] if think else None, think_end=think[1] if think else None
        )
        free = [token for token in range(size) if token not in self.control_ids]
        self._bytes = [b""] * size
        for number, token in enumerate(free[: len(PIECES)]):
            self._bytes[token] = PIECES[number]
        for token, text in zip(think or (), (b"<think>", b"</think>"), strict=False):
            self._bytes[token] = text
        self._ids = {text: token for token, text in enumerate(self._bytes) if text}

    def all_bytes(self, count: int) -> list[bytes]:
        """What each of the first ``count`` ids adds to a text."""
        return [*self._bytes, *[b""] * count][:count]

    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes:
        """What ``token_id`` adds to a text."""
        return self._bytes[token_id]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of ``ids``."""
        return b"".join(self._bytes[i] for i in ids).decode(errors="replace")

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The longest pieces first."""
        rest, found = text.encode(), []
        while rest:
            fits = (rest[:size] for size in range(3, 0, -1) if rest[:size] in self._ids)
            piece = next(fits, rest[:1])
            found += [self._ids[piece]] if piece in self._ids else []
            rest = rest[len(piece) :]
        return found
