"""Checks of one request against a model and an engine: every field is honoured or refused.

Every text names the field, its value and what is allowed. Knows nothing of slots or rounds.
"""

from dataclasses import replace
from typing import NamedTuple

from blockdiff.core import DecodingParams, Mode, Request
from blockdiff.decoding.acceptance import NO_THRESHOLD
from blockdiff.decoding.uniform import ENTROPY_BOUND
from blockdiff.engine.config import EngineConfig
from blockdiff.engine.ranges import MAX_ENTROPY_BOUND, check_integer, check_number
from blockdiff.engine.validate_pins import check_pins
from blockdiff.engine.validate_sampling import check_sampling
from blockdiff.engine.validate_thinking import check_thinking
from blockdiff.engine.validate_uniform import check_uniform, fill_uniform
from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.model_info import ModelInfo
from blockdiff.scheduler import MAX_EOS_IDS

MAX_POST_STEPS = 1024
MAX_PRIORITY = 1000
DEFAULT_ENTROPY_BOUND = 0.35


class ResolvedDecoding(NamedTuple):
    """Decoding parameters with the model's defaults filled in."""

    block_length: int
    threshold: float  # for entropy_bounded and entropy_bound: the entropy bound
    eos_ids: tuple[int, ...]
    decoding: DecodingParams  # its algorithm is set


def resolve_decoding(request: Request, info: ModelInfo) -> ResolvedDecoding:
    """Defaults of a checked request. A fixed schedule has no threshold unless one is given."""
    decoding = fill_uniform(with_algorithm(request, info).decoding, info)
    threshold = decoding.threshold
    if decoding.algorithm == ENTROPY_BOUND:
        threshold = decoding.entropy_bound
    if decoding.algorithm == "entropy_bounded":
        bound = decoding.entropy_bound
        threshold = DEFAULT_ENTROPY_BOUND if bound is None else bound
    if threshold is None:
        threshold = info.default_threshold if decoding.denoise_steps is None else NO_THRESHOLD
    return ResolvedDecoding(
        block_length=decoding.block_length or info.block_length,
        threshold=threshold,
        eos_ids=ending_ids(request, info),
        decoding=decoding,
    )


def ending_ids(request: Request, info: ModelInfo) -> tuple[int, ...]:
    """Every token that ends the answer, once each."""
    own = info.eos_token_ids if request.eos_ids is None else request.eos_ids
    return tuple(dict.fromkeys((*(() if request.ignore_eos else own), *request.stop_ids)))


def with_algorithm(request: Request, info: ModelInfo) -> Request:
    """The request with the model's first algorithm, if it names none."""
    named = request.decoding.algorithm or info.algorithms[0]
    return replace(request, decoding=replace(request.decoding, algorithm=named))


def check_request(
    request: Request, info: ModelInfo, config: EngineConfig, max_context: int, has_tokenizer: bool
) -> None:
    """Raise RequestError for the first field that cannot be honoured."""
    request = with_algorithm(request, info)
    _check_prompt(request, info)
    check_integer("priority", request.priority, 0, MAX_PRIORITY)
    _check_lengths(request, config, max_context)
    _check_endings(request, info, has_tokenizer)
    check_sampling(request, info)
    _check_decoding(request.decoding, info)
    check_uniform(request, info)
    _check_editing(request, info)
    check_pins(request, info)
    check_thinking(request, info, has_tokenizer)


def _check_prompt(request: Request, info: ModelInfo) -> None:
    if not request.input_ids:
        raise RequestError("input_ids: the prompt is empty; at least 1 token is needed")
    _check_ids("input_ids", request.input_ids, info.vocab_size)


def _check_ids(field: str, ids: tuple[int, ...], vocab_size: int) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        bad = next(token for token in ids if not 0 <= token < vocab_size)
        raise RequestError(f"{field}: {bad} is not a token id; allowed are 0 to {vocab_size - 1}")


def _check_lengths(request: Request, config: EngineConfig, max_context: int) -> None:
    check_integer("max_tokens", request.max_tokens, 1, config.max_output_tokens)
    check_integer("min_tokens", request.min_tokens, 0, request.max_tokens)
    prompt_length = len(request.input_ids)
    total = prompt_length + request.max_tokens
    if total > max_context:
        raise RequestError(
            f"max_tokens: {prompt_length} prompt tokens and max_tokens {request.max_tokens} make "
            f"{total}; at most {max_context} fit into the context"
        )


def _check_endings(request: Request, info: ModelInfo, has_tokenizer: bool) -> None:
    for field, ids in (("eos_ids", request.eos_ids or ()), ("stop_token_ids", request.stop_ids)):
        _check_ids(field, ids, info.vocab_size)
        if len(ids) > MAX_EOS_IDS:
            raise RequestError(f"{field}: {len(ids)} ids given; at most {MAX_EOS_IDS} are allowed")
        for token in info.control_token_ids:
            if token in ids:
                name = "the mask" if token == info.mask_token_id else "a control"
                raise RequestError(f"{field}: {token} is {name} token; it is never produced")
    count = len(ending_ids(request, info))
    if count > MAX_EOS_IDS:
        raise RequestError(
            f"stop_token_ids: {count} ids with the model's own; at most {MAX_EOS_IDS} are allowed"
        )
    if not request.stop_strings:
        return
    if "" in request.stop_strings:
        raise RequestError("stop_strings: an empty string is not allowed")
    if not has_tokenizer:
        raise UnsupportedError("stop_strings: this model has no tokenizer; use eos_ids")


def _check_decoding(decoding: DecodingParams, info: ModelInfo) -> None:
    if decoding.algorithm not in info.algorithms:
        allowed = ", ".join(info.algorithms)
        raise RequestError(f"algorithm: {decoding.algorithm!r} is unknown; allowed: {allowed}")
    if decoding.block_length is not None:
        _check_block_length(decoding.block_length, info)
    if decoding.mode is Mode.AUTOREGRESSIVE:
        _check_autoregressive(decoding, info)
        return
    if not info.decodes_blocks:
        raise UnsupportedError("mode: diffusion is not possible, the model has no mask token")
    _check_elastic(decoding)
    if decoding.algorithm == ENTROPY_BOUND:
        return
    block_length = decoding.block_length or info.block_length
    if decoding.denoise_steps is not None:
        check_integer("denoise_steps", decoding.denoise_steps, 1, block_length)
    if decoding.threshold is not None:
        if decoding.algorithm != "low_confidence":
            raise RequestError(
                f"threshold: {decoding.threshold} has no meaning for {decoding.algorithm}; "
                "leave it out"
            )
        check_number("threshold", decoding.threshold, 0.0, 1.0)
    if decoding.entropy_bound is not None:
        if decoding.algorithm != "entropy_bounded":
            raise RequestError(
                f"entropy_bound: {decoding.entropy_bound} has no meaning for "
                f"{decoding.algorithm}; leave it out"
            )
        check_number("entropy_bound", decoding.entropy_bound, 0.0, MAX_ENTROPY_BOUND)


def _check_elastic(decoding: DecodingParams) -> None:
    if not decoding.is_elastic or decoding.denoise_steps is not None:
        return
    if decoding.algorithm in ("sequential", "entropy_bounded"):
        raise UnsupportedError(
            f"is_elastic: {decoding.algorithm} has no threshold to lower; give denoise_steps or "
            "leave it out"
        )


def _check_editing(request: Request, info: ModelInfo) -> None:
    """Token editing is one way of decoding: greedy, by confidence, without a schedule."""
    decoding = request.decoding
    if decoding.editing_threshold is None:
        if decoding.max_post_steps is not None or decoding.num_to_transfer != 1:
            raise RequestError(
                "max_post_steps, num_to_transfer: only with token editing; give editing_threshold"
            )
        return
    if not info.supports_editing:
        raise UnsupportedError(
            f"editing_threshold: {info.model_type} does not support token editing; leave it out"
        )
    check_number("editing_threshold", decoding.editing_threshold, 0.0, 1.0)
    block_length = decoding.block_length or info.block_length
    check_integer("num_to_transfer", decoding.num_to_transfer, 1, block_length)
    if decoding.max_post_steps is not None:
        check_integer("max_post_steps", decoding.max_post_steps, 0, MAX_POST_STEPS)
    if decoding.denoise_steps is not None:
        raise RequestError(
            f"denoise_steps: {decoding.denoise_steps} has no meaning with editing_threshold; "
            "leave it out"
        )
    if decoding.algorithm != "low_confidence":
        raise RequestError(
            f"algorithm: {decoding.algorithm!r} cannot edit tokens; allowed: low_confidence"
        )
    if request.sampling.temperature > 0:
        raise RequestError(
            f"temperature: {request.sampling.temperature} cannot be combined with "
            "editing_threshold; allowed is 0"
        )


def _check_block_length(block_length: int, info: ModelInfo) -> None:
    lengths = info.block_lengths_allowed
    if lengths is None:
        check_integer("block_length", block_length, 1, info.max_context)
    elif block_length not in lengths:
        allowed = ", ".join(str(length) for length in lengths)
        raise RequestError(
            f"block_length: {block_length} does not work with this model; allowed: {allowed}"
        )


def _check_autoregressive(decoding: DecodingParams, info: ModelInfo) -> None:
    if not info.supports_autoregressive:
        raise UnsupportedError(
            f"mode: {info.model_type} cannot decode autoregressively; allowed: diffusion"
        )
    if decoding.algorithm != "low_confidence":
        raise UnsupportedError(
            f"algorithm: {decoding.algorithm} has no meaning in autoregressive mode; leave it out"
        )
    if decoding.is_elastic:
        raise UnsupportedError("is_elastic: has no meaning in autoregressive mode; leave it out")
    for field in ("denoise_steps", "threshold", "entropy_bound", "editing_threshold"):
        if (value := getattr(decoding, field)) is not None:
            raise UnsupportedError(
                f"{field}: {value} has no meaning in autoregressive mode; leave it out"
            )
