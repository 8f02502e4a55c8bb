"""The fields of request lines of ``blockdiff generate``: names, types, and what excludes what.

A line has the flags' names with underscores, or is a ``generate`` entry of a golden fixture whose
``params`` are merged into it. Knows nothing of models or of what becomes of a field.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from blockdiff.cli.infill import PinField
from blockdiff.errors import RequestError
from blockdiff.limits import MAX_TOP_LOG_PROBS

# What a golden entry says about itself: nothing of it changes how a request runs.
ENTRY_NOTES = frozenset(
    {"description", "expected", "reference_forwards", "tolerance", "state_tolerance", "info"}
)
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
    tool_choice: Text | dict[str, Any] | None = None
    enable_thinking: bool | None = None
    thinking_budget: Annotated[int, Field(ge=-1)] | None = None
    max_tokens: int = 128
    min_tokens: int = 0
    stop: list[Text] = Field(default_factory=list)
    bad_words: list[Text] = Field(default_factory=list)
    guide_type: Literal["json", "json_schema", "regex", "ebnf_grammar"] | None = None
    guide: Text | None = None
    ignore_eos: bool = False
    priority: int = 0
    eos_id: int | None = None
    stop_ids: Ids | None = None
    stop_token_ids: Ids = Field(default_factory=list)
    include_stop_str_in_output: bool = False
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
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, int | float] | None = None
    stop_ramp: dict[str, int | float] | None = None
    think_end_ramp: dict[str, int | float] | None = None
    return_log_probs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOG_PROBS)] = 0
    return_step_map: bool = False
    pinned: PinField = ()
    suffix: Text | None = None
    suffix_ids: Ids | None = None
    gap: Annotated[int, Field(ge=1)] | None = None
    arrive_after_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


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
    if line.replay and (line.pinned or line.gap is not None):
        raise RequestError("replay: a recorded run has no pinned or suffix; leave them out")
    if line.guide is not None and line.guide_type is None:
        raise RequestError("guide: needs guide_type beside it")
    return line
