"""Request lines of ``blockdiff generate``: JSON objects in, checked engine requests out.

A line has the flags' names with underscores, or is a ``generate`` entry of a golden fixture whose
``params`` are merged into it. Knows nothing of files, engines or output.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from blockdiff.core import DecodingParams, Mode, Request, SamplingParams
from blockdiff.decoding import scheduled_counts
from blockdiff.errors import ConfigError, RequestError, UnsupportedError
from blockdiff.models.base import ModelInfo
from blockdiff.serving.messages import parse_messages, parse_tools
from blockdiff.text import Tokenizer

# What a golden entry says about itself: nothing of it changes how a request runs.
ENTRY_NOTES = frozenset(
    {"description", "expected", "reference_forwards", "tolerance", "state_tolerance", "info"}
)
STRATEGIES = {
    "low_confidence": "low_confidence",
    "low_confidence_static": "low_confidence",
    "low_confidence_dynamic": "low_confidence",
    "sequential": "sequential",
    "entropy_bounded": "entropy_bounded",
}
Ids = list[Annotated[int, Field(ge=0)]]


def _utf8(text: str) -> str:
    # Bytes of the command line and escapes in JSON may give lone surrogates.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PydanticCustomError("utf8", "Input should be UTF-8 text") from error
    return text


Text = Annotated[str, AfterValidator(_utf8)]


class ReplayInputs(BaseModel):
    """Names of recorded draws, one per canvas each."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    start_canvas: list[Text]
    sampled: list[Text]
    random: list[Text]


class RequestLine(BaseModel):
    """Every field a line may have. Ranges are checked by the engine, types here."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Text | None = None
    kind: Literal["generate"] = "generate"
    prompt: Text | None = None
    messages: list[dict[str, Any]] | None = None
    input_ids: Ids | None = None
    tools: list[dict[str, Any]] | None = None
    enable_thinking: bool | None = None
    max_tokens: int = 128
    min_tokens: int = 0
    stop: list[Text] = Field(default_factory=list)
    ignore_eos: bool = False
    eos_id: int | None = None
    stop_ids: Ids | None = None
    mask_id: int | None = None
    mode: Literal["diffusion", "autoregressive"] = "diffusion"
    algorithm: str | None = None
    strategy: str | None = None
    block_length: Annotated[int, Field(ge=1)] | None = None
    denoise_steps: int | None = None
    steps: int | None = None
    effective_steps: int | None = None
    minimal_topk: Annotated[int, Field(ge=1)] | None = None
    transfer_schedule: list[int] | None = None
    num_to_transfer: Annotated[int, Field(ge=1)] | None = None
    threshold: float | None = None
    eb_threshold: float | None = None
    entropy_bound: float | None = None
    max_denoising_steps: int | None = None
    t_min: float | None = None
    t_max: float | None = None
    stability_threshold: int | None = None
    confidence_threshold: float | None = None
    # What the reference writes after an end token; output never reaches it.
    pad_id: Annotated[int, Field(ge=0)] | None = None
    replay: bool = False
    inputs: ReplayInputs | None = None
    editing_threshold: float | None = None
    max_post_steps: int | None = None
    # The engine always stops early; output is the same either way.
    eos_early_stop: bool | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    arrive_after_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


@dataclass(frozen=True)
class Job:
    """One request to run. ``place`` names it in error texts ("" for flags)."""

    request: Request
    name: str | None = None
    arrive_after_seconds: float = 0.0
    place: str = ""
    replay: ReplayInputs | None = None


def parse_line(text: str) -> dict[str, Any]:
    """The object of one line, ``params`` merged in; raises RequestError."""
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"not JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise RequestError("not JSON of ordinary depth and numbers") from error
    if not isinstance(given, dict):
        raise RequestError(f"a {type(given).__name__}; each line must be a JSON object")
    params = given.pop("params", {})
    if not isinstance(params, dict):
        raise RequestError("params: must be an object")
    for field in params:
        if field in given:
            raise RequestError(f"{field}: given twice, in the entry and in its params")
    return {k: v for k, v in {**given, **params}.items() if k not in ENTRY_NOTES}


def check_fields(given: Mapping[str, Any]) -> RequestLine:
    """Types and names of the fields; raises RequestError for the first that is wrong."""
    try:
        line = RequestLine.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise RequestError(f"{field}: unknown field") from error
        shown = json.dumps(first["input"], default=str)
        raise RequestError(f"{field}: {first['msg']}, got {shown[:60]}") from error
    prompts = [f for f in ("prompt", "messages", "input_ids") if getattr(line, f) is not None]
    if len(prompts) != 1:
        got = " and ".join(prompts) or "none"
        raise RequestError(f"prompt, messages, input_ids: exactly one is needed, got {got}")
    if line.replay != (line.inputs is not None):
        raise RequestError("replay, inputs: recorded draws need both of them")
    return line


def build_request(
    line: RequestLine, uid: int, info: ModelInfo, tokenizer: Tokenizer | None
) -> Request:
    """The engine's form of a line, for one model; raises RequestError."""
    _refuse_editing(line, info)
    if line.mask_id is not None and line.mask_id != info.mask_token_id:
        raise RequestError(
            f"mask_id: {line.mask_id} is not this model's mask token ({info.mask_token_id})"
        )
    return Request(
        uid=uid,
        input_ids=tuple(_input_ids(line, tokenizer)),
        max_tokens=line.max_tokens,
        min_tokens=line.min_tokens,
        ignore_eos=line.ignore_eos,
        eos_ids=_eos_ids(line),
        stop_strings=tuple(line.stop),
        sampling=SamplingParams(line.temperature, line.top_k, line.top_p, line.seed),
        decoding=_decoding(line, info),
    )


def _refuse_editing(line: RequestLine, info: ModelInfo) -> None:
    for field in ("editing_threshold", "max_post_steps"):
        if getattr(line, field) is not None and not info.supports_editing:
            raise UnsupportedError(
                f"{field}: {info.model_type} does not support token editing; leave it out"
            )


def _input_ids(line: RequestLine, tokenizer: Tokenizer | None) -> list[int]:
    if line.input_ids is not None:
        for field in ("tools", "enable_thinking"):
            if getattr(line, field) is not None:
                raise RequestError(f"{field}: needs messages, not input_ids")
        return line.input_ids
    if tokenizer is None:
        raise ConfigError("the model folder has no tokenizer.json; give token ids (input_ids)")
    if line.messages is None:
        for field in ("tools", "enable_thinking"):
            if getattr(line, field) is not None:
                raise RequestError(f"{field}: needs messages, not prompt")
        return tokenizer.encode(line.prompt or "")
    messages = parse_messages(json.dumps(line.messages))
    tools = parse_tools(json.dumps(line.tools)) if line.tools else None
    return tokenizer.apply_chat_template(messages, tools, line.enable_thinking)


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
