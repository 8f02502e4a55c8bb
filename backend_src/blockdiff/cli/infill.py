"""Given parts of an answer in request lines: pinned places, and a suffix behind a gap.

Knows the forms that people write; ranges are the engine's to check.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from blockdiff.errors import RequestError

PairTuple = tuple[tuple[int, int], ...]


def _read_pins(given: Any) -> Any:
    """Pairs of an object ``{"5": 17}`` or of a list ``[[5, 17]]``."""
    pairs = list(given.items()) if isinstance(given, dict) else given
    if isinstance(given, dict):
        pairs = [(int(k) if k.isdecimal() else k, token) for k, token in pairs]
    is_list = isinstance(pairs, (list, tuple))
    if not is_list or not all(_is_pair(pair) for pair in pairs):
        raise PydanticCustomError(
            "pins", 'Input should be places and token ids, e.g. {{"5": 17}} or [[5, 17]]'
        )
    return tuple((pair[0], pair[1]) for pair in pairs)


def _is_pair(pair: Any) -> bool:
    is_two = isinstance(pair, (list, tuple)) and len(pair) == 2
    return is_two and all(isinstance(x, int) and not isinstance(x, bool) for x in pair)


PinField = Annotated[PairTuple, BeforeValidator(_read_pins)]


class Infill(NamedTuple):
    """What is given of an answer, and the limits that follow from it where none are given."""

    pinned: PairTuple
    max_tokens: int | None = None
    min_tokens: int | None = None


def read_infill(
    pinned: PairTuple,
    suffix: str | None,
    suffix_ids: Sequence[int] | None,
    gap: int | None,
    encode: Callable[[str], Sequence[int]],
) -> Infill:
    """Pins of a line: its own, and a suffix that begins after ``gap`` open places.

    With a suffix the answer has room for gap and suffix, and no end token in the gap.
    """
    if suffix is not None and suffix_ids is not None:
        raise RequestError("suffix, suffix_ids: only one of them may be given")
    tokens = encode(suffix) if suffix is not None else suffix_ids
    if (tokens is None) != (gap is None):
        raise RequestError("suffix, suffix_ids, gap: a suffix needs a gap and a gap a suffix")
    if tokens is None or gap is None:
        return Infill(pinned)
    if not tokens:
        raise RequestError("suffix: it is empty; at least 1 token is needed")
    own = tuple((gap + place, token) for place, token in enumerate(tokens))
    return Infill((*pinned, *own), gap + len(tokens), gap)
