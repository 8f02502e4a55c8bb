"""Checks and defaults of requests to models whose canvases start as random tokens.

Knows the fields of the algorithm ``entropy_bound``; knows nothing of slots or rounds.
"""

from dataclasses import replace

from blockdiff.core import DecodingParams, Request
from blockdiff.decoding.uniform import ENTROPY_BOUND
from blockdiff.engine.ranges import MAX_ENTROPY_BOUND, check_integer, check_number
from blockdiff.errors import RequestError
from blockdiff.limits import MAX_TEMPERATURE
from blockdiff.model_info import ModelInfo

MAX_STEPS = 4096

OWN_FIELDS = ("t_min", "t_max", "stability_threshold", "confidence_threshold")


def fill_uniform(decoding: DecodingParams, info: ModelInfo) -> DecodingParams:
    """``decoding`` with the model's defaults; other algorithms are left as they are."""
    if decoding.algorithm != ENTROPY_BOUND:
        return decoding
    assert info.uniform is not None, "a model with this algorithm has its defaults"
    names = ("denoise_steps", "entropy_bound", *OWN_FIELDS)
    missing = {name: getattr(info.uniform, name) for name in names if _is_unset(decoding, name)}
    return replace(decoding, **missing)


def check_uniform(request: Request, info: ModelInfo) -> None:
    """Raise RequestError for the first field that this way of decoding, or any other, has not."""
    decoding = request.decoding
    if decoding.algorithm != ENTROPY_BOUND:
        for field in OWN_FIELDS:
            if not _is_unset(decoding, field):
                value = getattr(decoding, field)
                raise RequestError(
                    f"{field}: {value} has no meaning for {decoding.algorithm}; leave it out"
                )
        return
    _refuse_others(request)
    filled = fill_uniform(decoding, info)
    steps, bound, stable = filled.denoise_steps, filled.entropy_bound, filled.stability_threshold
    t_min, t_max, confidence = filled.t_min, filled.t_max, filled.confidence_threshold
    assert steps is not None and bound is not None and stable is not None, "filled above"
    assert t_min is not None and t_max is not None and confidence is not None, "filled above"
    check_integer("denoise_steps", steps, 1, MAX_STEPS)
    check_number("entropy_bound", bound, 0.0, MAX_ENTROPY_BOUND)
    check_number("t_max", t_max, 1e-3, MAX_TEMPERATURE)
    check_number("t_min", t_min, 0.0, t_max)
    check_integer("stability_threshold", stable, 0, MAX_STEPS)
    check_number("confidence_threshold", confidence, 0.0, MAX_ENTROPY_BOUND)


def _refuse_others(request: Request) -> None:
    sampling, decoding = request.sampling, request.decoding
    neutral = {"temperature": 0, "top_k": 0, "top_p": 1}
    for field, value in neutral.items():
        given = getattr(sampling, field)
        if given != value:
            raise RequestError(
                f"{field}: {given} cannot be combined with {ENTROPY_BOUND}, which draws by the "
                f"temperatures from t_max to t_min; allowed is {value}"
            )
    if decoding.threshold is not None:
        raise RequestError(
            f"threshold: {decoding.threshold} has no meaning for {ENTROPY_BOUND}; "
            "give entropy_bound or confidence_threshold"
        )


def _is_unset(decoding: DecodingParams, name: str) -> bool:
    return getattr(decoding, name) is None
