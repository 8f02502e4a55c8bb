"""Checks of given output positions (``Request.pinned``) against a request and its model.

Knows nothing of blocks, slots or rounds.
"""

from blockdiff.core import Mode, Request
from blockdiff.engine.ranges import check_integer
from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.model_info import ModelInfo


def check_pins(request: Request, info: ModelInfo) -> None:
    """Raise RequestError for the first pin that cannot be honoured."""
    if not request.pinned:
        return
    if request.decoding.mode is Mode.AUTOREGRESSIVE:
        raise UnsupportedError("pinned: not possible in autoregressive mode; leave it out")
    if request.decoding.editing_threshold is not None and info.edits_length:
        raise UnsupportedError(
            "pinned: cannot be combined with editing_threshold, because "
            f"{info.model_type} moves tokens when it inserts and deletes; leave one of them out"
        )
    seen: set[int] = set()
    for place, token in request.pinned:
        check_integer("pinned: place", place, 0, request.max_tokens - 1)
        check_integer(f"pinned: token at place {place}", token, 0, info.vocab_size - 1)
        if token in info.control_token_ids:
            name = "the mask" if token == info.mask_token_id else "a control"
            raise RequestError(
                f"pinned: token at place {place}: {token} is {name} token, which is never output"
            )
        if place in seen:
            raise RequestError(f"pinned: place {place} is given twice; once is allowed")
        seen.add(place)
