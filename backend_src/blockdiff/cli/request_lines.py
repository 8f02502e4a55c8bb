"""Checked request lines of ``blockdiff generate`` as engine requests, for one model.

Knows nothing of files, engines or output.
"""

import json
from typing import Any

from blockdiff.cli.infill import read_infill
from blockdiff.cli.line_fields import RequestLine
from blockdiff.cli.line_prompt import read_prompt
from blockdiff.core import DecodingParams, Mode, Request, SamplingParams
from blockdiff.decoding.acceptance import scheduled_counts
from blockdiff.errors import ConfigError, RequestError, UnsupportedError
from blockdiff.infill import Infill
from blockdiff.models.base import ModelInfo
from blockdiff.serving.sampling_fields import read_biases, read_ramps
from blockdiff.text import Tokenizer

STRATEGIES = {
    "low_confidence": "low_confidence",
    "low_confidence_static": "low_confidence",
    "low_confidence_dynamic": "low_confidence",
    "sequential": "sequential",
    "entropy_bounded": "entropy_bounded",
}


def build_request(
    line: RequestLine, uid: int, info: ModelInfo, tokenizer: Tokenizer | None
) -> Request:
    """The engine's form of a line, for one model; raises RequestError."""
    _refuse_editing(line, info)
    if line.mask_id is not None and line.mask_id != info.mask_token_id:
        raise RequestError(
            f"mask_id: {line.mask_id} is not this model's mask token ({info.mask_token_id})"
        )
    infill = _infill(line, tokenizer)
    prompt = read_prompt(line, tokenizer)
    return Request(
        uid=uid,
        input_ids=tuple(prompt.input_ids),
        guide=prompt.guide,
        thinking=prompt.thinking,
        bad_strings=tuple(line.bad_words),
        pinned=infill.pinned,
        max_tokens=_limit(line, "max_tokens", infill.max_tokens),
        min_tokens=_limit(line, "min_tokens", infill.min_tokens),
        priority=line.priority,
        ignore_eos=line.ignore_eos,
        eos_ids=_eos_ids(line),
        stop_ids=tuple(line.stop_token_ids),
        stop_strings=tuple(line.stop),
        sampling=_sampling(line, tokenizer),
        num_top_log_probs=line.top_logprobs,
        wants_step_map=line.return_step_map,
        decoding=_decoding(line, info),
    )


def _sampling(line: RequestLine, tokenizer: Tokenizer | None) -> SamplingParams:
    texts = {
        name: json.dumps(value)
        for name in ("logit_bias", "stop_ramp", "think_end_ramp")
        if (value := getattr(line, name)) is not None
    }
    think_end = None if tokenizer is None else tokenizer.special.think_end
    given = {**texts, "ignore_eos": line.ignore_eos}
    return SamplingParams(
        temperature=line.temperature,
        top_k=line.top_k,
        top_p=line.top_p,
        seed=line.seed,
        min_p=line.min_p,
        repetition_penalty=line.repetition_penalty,
        presence_penalty=line.presence_penalty,
        frequency_penalty=line.frequency_penalty,
        logit_bias=read_biases(texts.get("logit_bias", "")),
        ramps=read_ramps(given, {"stop_ramp": "", "think_end_ramp": ""}, think_end, True),
    )


def _infill(line: RequestLine, tokenizer: Tokenizer | None) -> Infill:
    def encode(text: str) -> list[int]:
        if tokenizer is None:
            raise ConfigError("suffix: the model folder has no tokenizer.json; give suffix_ids")
        return tokenizer.encode(text)

    return read_infill(line.pinned, line.suffix, line.suffix_ids, line.gap, encode)


def _limit(line: RequestLine, field: str, by_suffix: int | None) -> int:
    """What the line says, or else what its suffix needs."""
    own: int = getattr(line, field)
    return own if by_suffix is None or field in line.model_fields_set else by_suffix


def _refuse_editing(line: RequestLine, info: ModelInfo) -> None:
    for field in ("editing_threshold", "max_post_steps"):
        if getattr(line, field) is not None and not info.supports_editing:
            raise UnsupportedError(
                f"{field}: {info.model_type} does not support token editing; leave it out"
            )


def _eos_ids(line: RequestLine) -> tuple[int, ...] | None:
    if line.eos_id is not None and line.stop_ids is not None:
        raise RequestError("eos_id, stop_ids: only one of them may be given")
    if line.eos_id is not None:
        return (line.eos_id,)
    return None if line.stop_ids is None else tuple(line.stop_ids)


def _decoding(line: RequestLine, info: ModelInfo) -> DecodingParams:
    steps = _denoise_steps(line)
    block_length = line.block_length or info.block_length
    if steps is None and line.strategy == "low_confidence_static":
        steps = block_length
    if line.transfer_schedule is not None:
        _check_schedule(line.transfer_schedule, block_length, steps or block_length)
    if line.steps is not None and steps is not None:
        # the references take more steps than positions, which leaves steps without a share
        steps = min(steps, block_length)
    algorithm = line.algorithm
    if line.strategy is not None:
        if line.algorithm is not None:
            raise RequestError("algorithm, strategy: only one of them may be given")
        algorithm = STRATEGIES.get(line.strategy, line.strategy)
    return DecodingParams(
        mode=Mode(line.mode),
        algorithm=algorithm,
        block_length=line.block_length,
        denoise_steps=steps,
        threshold=_threshold(line),
        entropy_bound=_only_one(line, "entropy_bound", "eb_threshold"),
        editing_threshold=line.editing_threshold,
        max_post_steps=line.max_post_steps,
        num_to_transfer=line.num_to_transfer or 1,
        t_min=line.t_min,
        t_max=line.t_max,
        stability_threshold=line.stability_threshold,
        confidence_threshold=line.confidence_threshold,
    )


def _check_schedule(given: list[int], block_length: int, steps: int) -> None:
    # the lengths first: a schedule of as many entries as a line may ask for need not fit in memory
    if len(given) != steps:
        raise RequestError(f"transfer_schedule: has {len(given)} entries, for {steps} steps")
    schedule = scheduled_counts(block_length, steps)
    if given != schedule:
        raise RequestError(f"transfer_schedule: must be {schedule} for these steps")


def _threshold(line: RequestLine) -> float | None:
    needs = {"low_confidence_static": False, "low_confidence_dynamic": True}.get(
        line.strategy or ""
    )
    if needs is not None and needs != (line.threshold is not None):
        wanted = "needs a threshold" if needs else "has no threshold; leave it out"
        raise RequestError(f"strategy: {line.strategy} {wanted}")
    return line.threshold


def _denoise_steps(line: RequestLine) -> int | None:
    steps: int | None = _only_one(line, "denoise_steps", "steps", "max_denoising_steps")
    if line.minimal_topk is not None:
        if steps is None:
            raise RequestError(f"minimal_topk: {line.minimal_topk} limits steps; give steps too")
        steps = max(min(steps, line.max_tokens // line.minimal_topk), 1)
    if line.effective_steps is not None and line.effective_steps != steps:
        raise RequestError(
            f"effective_steps: {line.effective_steps} is not what steps give ({steps})"
        )
    return steps


def _only_one(line: RequestLine, *fields: str) -> Any:
    """The value of the one field that is given, of several that mean the same; None if none is."""
    given = [field for field in fields if getattr(line, field) is not None]
    if len(given) > 1:
        raise RequestError(f"{', '.join(given)}: only one of them may be given")
    return getattr(line, given[0]) if given else None
