"""Checks of how a request wants its tokens chosen (``SamplingParams``) and reported.

Knows the vocabulary of a model; knows nothing of blocks, slots or rounds.
"""

from blockdiff.core import Ramp, Request
from blockdiff.engine.ranges import check_integer, check_number
from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.limits import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_PENALTY,
    MAX_RAMP_BOOST,
    MAX_RAMP_SLOPE,
    MAX_RAMP_START,
    MAX_REPETITION_PENALTY,
    MAX_SEED,
    MAX_TEMPERATURE,
    MAX_TOP_LOG_PROBS,
)
from blockdiff.model_info import ModelInfo


def check_sampling(request: Request, info: ModelInfo) -> None:
    """Raise RequestError for the first field that cannot be honoured."""
    sampling = request.sampling
    check_number("temperature", sampling.temperature, 0.0, MAX_TEMPERATURE)
    check_integer("top_k", sampling.top_k, 0, 2**31 - 1)
    check_number("top_p", sampling.top_p, 0.0, 1.0)
    _require_above_zero("top_p", sampling.top_p, 1.0)
    check_number("min_p", sampling.min_p, 0.0, 1.0)
    check_integer("seed", sampling.seed, 0, MAX_SEED)
    repetition = sampling.repetition_penalty
    check_number("repetition_penalty", repetition, 0.0, MAX_REPETITION_PENALTY)
    _require_above_zero("repetition_penalty", repetition, MAX_REPETITION_PENALTY)
    check_number("presence_penalty", sampling.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    check_number("frequency_penalty", sampling.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    check_integer("num_top_log_probs", request.num_top_log_probs, 0, MAX_TOP_LOG_PROBS)
    _check_biases(sampling.logit_bias, info)
    _check_ramps(request, info)


def _require_above_zero(field: str, value: float, high: float) -> None:
    if value == 0:
        raise RequestError(f"{field}: 0.0 is not allowed; allowed is above 0.0, up to {high}")


def _check_biases(biases: tuple[tuple[int, float], ...], info: ModelInfo) -> None:
    check_integer("logit_bias: number of tokens", len(biases), 0, MAX_BIASES)
    seen: set[int] = set()
    for token, bias in biases:
        _check_token("logit_bias", token, info)
        check_number(f"logit_bias: bias of token {token}", bias, -MAX_BIAS, MAX_BIAS)
        if token in seen:
            raise RequestError(f"logit_bias: token {token} is given twice; once is allowed")
        seen.add(token)


def _check_token(field: str, token: int, info: ModelInfo) -> None:
    check_integer(f"{field}: token", token, 0, info.vocab_size - 1)
    if token in info.control_token_ids:
        name = "the mask" if token == info.mask_token_id else "a control"
        raise RequestError(f"{field}: {token} is {name} token, which is never output")


def _check_ramps(request: Request, info: ModelInfo) -> None:
    seen: set[int] = set()
    for ramp in request.sampling.ramps:
        check_integer("ramps: start", ramp.start, 0, MAX_RAMP_START)
        check_number("ramps: slope", ramp.slope, 0.0, MAX_RAMP_SLOPE)
        check_number("ramps: most", ramp.most, 0.0, MAX_RAMP_BOOST)
        for token in _ramp_tokens(ramp, request, info):
            _check_token("ramps", token, info)
            if token in seen:
                raise RequestError(f"ramps: token {token} is in two of them; one is allowed")
            seen.add(token)


def _ramp_tokens(ramp: Ramp, request: Request, info: ModelInfo) -> tuple[int, ...]:
    """Each once, however often the request names it."""
    if ramp.token_ids is not None:
        return tuple(dict.fromkeys(ramp.token_ids))
    if request.ignore_eos:
        raise RequestError("ramps: one of the end tokens has no meaning with ignore_eos")
    eos = info.eos_token_ids if request.eos_ids is None else request.eos_ids
    if not eos:
        raise UnsupportedError("ramps: there are no end tokens; give eos_ids or token_ids")
    return tuple(dict.fromkeys(eos))
