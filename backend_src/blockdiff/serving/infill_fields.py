"""``pinned``, ``suffix`` and ``gap`` of a request as pins of the engine.

Knows checked values; knows nothing of tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blockdiff.infill import PIN_FORMS, Infill, place_suffix, read_pairs
from blockdiff.serving.json_text import parse_json, refuse


def read_infill(given: Mapping[str, Any], encode: Callable[[str], Sequence[int]]) -> Infill:
    """What is given of the answer; ``encode`` gives a suffix its tokens."""
    text = given.get("pinned", "")
    pinned = read_pairs(parse_json("pinned", text)) if text.strip() else ()
    if pinned is None:
        raise refuse("pinned", text, f"JSON of {PIN_FORMS}")
    if not given.get("suffix"):
        return Infill(pinned)
    return place_suffix(pinned, encode(given["suffix"]), given["gap"])
