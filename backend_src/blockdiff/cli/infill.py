"""Given parts of an answer in request lines: pinned places, and a suffix behind a gap.

Knows how lines write them; what they mean is ``blockdiff.infill``'s to say.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from blockdiff.errors import RequestError
from blockdiff.infill import PIN_FORMS, Infill, PairTuple, place_suffix, read_pairs


def _read_pins(given: Any) -> Any:
    pairs = read_pairs(given)
    if pairs is None:
        forms = PIN_FORMS.replace("{", "{{").replace("}", "}}")
        raise PydanticCustomError("pins", f"Input should be {forms}")
    return pairs


PinField = Annotated[PairTuple, BeforeValidator(_read_pins)]


def read_infill(
    pinned: PairTuple,
    suffix: str | None,
    suffix_ids: Sequence[int] | None,
    gap: int | None,
    encode: Callable[[str], Sequence[int]],
) -> Infill:
    """Pins of a line: its own, and a suffix that begins after ``gap`` open places."""
    if suffix is not None and suffix_ids is not None:
        raise RequestError("suffix, suffix_ids: only one of them may be given")
    tokens = encode(suffix) if suffix is not None else suffix_ids
    if (tokens is None) != (gap is None):
        raise RequestError("suffix, suffix_ids, gap: a suffix needs a gap and a gap a suffix")
    if tokens is None or gap is None:
        return Infill(pinned)
    return place_suffix(pinned, tokens, gap)
