"""Given parts of an answer: pinned places, and a suffix behind a gap.

Knows the forms that people write; ranges are the engine's to check.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from blockdiff.errors import RequestError

PairTuple = tuple[tuple[int, int], ...]
PIN_FORMS = 'places and token ids, e.g. {"5": 17} or [[5, 17]]'


class Infill(NamedTuple):
    """What is given of an answer, and the limits that follow from it where none are given."""

    pinned: PairTuple
    max_tokens: int | None = None
    min_tokens: int | None = None


def read_pairs(given: Any) -> PairTuple | None:
    """Pairs of an object ``{"5": 17}`` or of a list ``[[5, 17]]``; None: it is neither."""
    pairs = list(given.items()) if isinstance(given, dict) else given
    if isinstance(given, dict):
        # more digits than any place has are not read at all
        pairs = [(int(k) if k.isdecimal() and len(k) < 19 else k, token) for k, token in pairs]
    is_list = isinstance(pairs, (list, tuple))
    if not is_list or not all(_is_pair(pair) for pair in pairs):
        return None
    return tuple((pair[0], pair[1]) for pair in pairs)


def _is_pair(pair: Any) -> bool:
    is_two = isinstance(pair, (list, tuple)) and len(pair) == 2
    return is_two and all(isinstance(x, int) and not isinstance(x, bool) for x in pair)


def place_suffix(pinned: PairTuple, tokens: Sequence[int], gap: int) -> Infill:
    """``pinned`` and a suffix of ``tokens`` that begins after ``gap`` open places.

    The answer has room for gap and suffix, and no end token in the gap.
    """
    if not tokens:
        raise RequestError("suffix: it is empty; at least 1 token is needed")
    own = tuple((gap + place, token) for place, token in enumerate(tokens))
    return Infill((*pinned, *own), gap + len(tokens), gap)
