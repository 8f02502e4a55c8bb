"""A tokenizer as constraints see it: the bytes of every token, and which ones are control tokens.

Knows nothing of grammars or requests.
"""

import bisect
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from blockdiff.constraints.base import Bits


class BytesTokenizer(Protocol):
    """What a vocabulary needs of a tokenizer."""

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that are no text."""
        ...

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """Ids of a text, as the model was trained to see it."""
        ...

    def all_bytes(self, count: int) -> list[bytes] | None:
        """What each of the first ``count`` ids adds to a text; None where that is not known."""
        ...


class Vocabulary:
    """``size`` tokens of a model. What takes long is worked out when it is first asked for."""

    def __init__(self, tokenizer: BytesTokenizer, tokens: Sequence[bytes]) -> None:
        """``tokens``: as ``all_bytes`` gave them."""
        self.tokenizer = tokenizer
        self.tokens = tokens
        self.size = len(tokens)
        self.control_ids = frozenset(i for i in tokenizer.control_ids if i < self.size)

    @property
    def words(self) -> int:
        """Length of a mask."""
        return -(-self.size // 32)

    def bits(self, token_ids: Iterable[int]) -> Bits:
        """A mask of ``token_ids``."""
        flags = np.zeros(self.words * 32, np.bool_)
        flags[np.fromiter(token_ids, np.int64)] = True
        return np.packbits(flags, bitorder="little").view(np.uint32)

    @cached_property
    def all_bits(self) -> Bits:
        """Mask of every token."""
        return self.bits(range(self.size))

    @cached_property
    def control_bits(self) -> Bits:
        """Mask of the control tokens."""
        return self.bits(self.control_ids)

    @cached_property
    def _sorted(self) -> tuple[list[bytes], npt.NDArray[np.int64]]:
        order = sorted(range(self.size), key=self.tokens.__getitem__)
        return [self.tokens[i] for i in order], np.array(order, np.int64)

    def starting_with(self, prefix: bytes) -> npt.NDArray[np.int64]:
        """Ids of the tokens that begin with ``prefix``."""
        texts, order = self._sorted
        first = bisect.bisect_left(texts, prefix)
        last = bisect.bisect_right(texts, prefix, key=lambda text: text[: len(prefix)])
        return order[first:last]

    @cached_property
    def _joined(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        lengths = np.fromiter((len(token) for token in self.tokens), np.int64, self.size)
        return np.frombuffer(b"".join(self.tokens), np.uint8), lengths.cumsum()

    def containing(self, text: bytes) -> npt.NDArray[np.int64]:
        """Ids of the tokens that have ``text`` inside."""
        joined, ends = self._joined
        found = np.flatnonzero(joined[: len(joined) - len(text) + 1] == text[0])
        for place in range(1, len(text)):
            found = found[joined[found + place] == text[place]]
        owners = np.searchsorted(ends, found, side="right")
        return np.unique(owners[found + len(text) <= ends[owners]])
