"""Checks of a request's guide and bad strings against the request and its model.

Knows which ways of decoding can be constrained; knows nothing of grammars, slots or rounds.
"""

from blockdiff.constraints.maker import ConstraintMaker
from blockdiff.core import Request
from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.models.base import ModelInfo


def check_constraint(request: Request, info: ModelInfo, maker: ConstraintMaker) -> None:
    """Raise RequestError where guide or bad strings cannot be honoured; may take seconds."""
    if request.guide is None and not request.bad_strings:
        return
    field = "bad_strings" if request.guide is None else "guide"
    if request.decoding.editing_threshold is not None and info.edits_length:
        raise UnsupportedError(
            f"{field}: cannot be combined with editing_threshold, because {info.model_type} "
            "moves tokens when it inserts and deletes; leave one of them out"
        )
    constraint = maker.make(request)
    assert constraint is not None, "it has one"
    # Pins that begin the output can be judged now; later ones when the output has come to them.
    given = [token for _, token in sorted(request.pinned)]
    places = [place for place, _ in sorted(request.pinned)]
    leading = next((i for i, place in enumerate(places) if place != i), len(places))
    own = info.eos_token_ids if request.eos_ids is None else request.eos_ids
    eos = (*(() if request.ignore_eos else own), *request.stop_ids)
    count = next((i for i in range(leading) if given[i] in eos), leading)
    if (taken := constraint.check(given[:count])) < count:
        raise RequestError(
            f"pinned: token {given[taken]} at place {taken} cannot begin an output that guide "
            "and bad_strings allow"
        )
