"""The one table of every public tensor: names, types, ranges, aliases, and what is refused.

The config.pbtxt files, the request validation and the documentation follow this table (a test
compares them). Knows nothing of how tensors arrive.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

MAX_STOP_WORDS = 16
MAX_STOP_WORD_CHARACTERS = 256


class Kind(str, Enum):
    """Element type, by the name Triton uses in config.pbtxt."""

    STRING = "TYPE_STRING"
    INT32 = "TYPE_INT32"
    UINT64 = "TYPE_UINT64"
    FP32 = "TYPE_FP32"
    BOOL = "TYPE_BOOL"


@dataclass(frozen=True)
class Field:
    """One public input. ``default`` None means unset: the model or the server decides."""

    name: str
    kind: Kind
    meaning: str
    low: float | None = None
    high: float | None = None
    is_low_excluded: bool = False
    is_list: bool = False
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    default: Any = None
    is_refused: bool = False
    neutral: tuple[Any, ...] = ()
    """For a refused field: values that ask for nothing and are therefore accepted."""

    @property
    def dims(self) -> str:
        return "-1" if self.is_list else "1"

    def allowed(self, high: float | None = None) -> str:
        """The allowed values as a phrase; ``high`` narrows the upper end."""
        top = self.high if high is None else high
        if self.choices:
            return " or ".join(self.choices)
        if self.kind is Kind.BOOL:
            return "true or false"
        if self.low is not None and top is not None:
            if self.is_low_excluded:
                return f"more than {self.low:.10g} and up to {top:.10g}"
            return f"{_number(self.low)} to {_number(top)}"
        return {Kind.STRING: "UTF-8 text"}.get(self.kind, "a number")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


_S, _I, _U, _F, _B = Kind.STRING, Kind.INT32, Kind.UINT64, Kind.FP32, Kind.BOOL
INT32_MAX = 2**31 - 1

# quality -> threshold; None leaves the model's own default.
QUALITY_THRESHOLDS: dict[str, float | None] = {"fast": 0.7, "balanced": None, "high": 0.98}
# Gives way under load on servers that allow it; all other requests keep what they ask for.
ELASTIC_QUALITY = "balanced"

FIELDS: tuple[Field, ...] = (
    Field("text_input", _S, "raw prompt; control tokens in it stay text"),
    Field("messages", _S, "JSON list of chat messages, rendered by the model's template"),
    Field("tools", _S, "JSON list of tools in OpenAI form; only with messages"),
    Field("tool_choice", _S, "none, auto, required, or a JSON object that names one function"),
    Field("max_tokens", _I, "most tokens to generate", low=1, high=INT32_MAX),
    Field(
        "min_tokens",
        _I,
        "tokens before EOS or a stop string may end the answer",
        low=0,
        high=INT32_MAX,
        aliases=("min_length",),
        default=0,
    ),
    Field("stream", _B, "one response per block instead of one in all", default=False),
    Field("temperature", _F, "0 is greedy", low=0, high=100, default=0.0),
    Field("top_k", _I, "0 is off", low=0, high=INT32_MAX, default=0),
    Field("top_p", _F, "1 is off", low=0, high=1, is_low_excluded=True, default=1.0),
    Field(
        "seed",
        _U,
        "sampling seed; unset draws one at random",
        low=0,
        high=2**64 - 1,
        aliases=("random_seed",),
    ),
    Field("repetition_penalty", _F, "not supported", is_refused=True, neutral=(1.0,)),
    Field("presence_penalty", _F, "not supported", is_refused=True, neutral=(0.0,)),
    Field("frequency_penalty", _F, "not supported", is_refused=True, neutral=(0.0,)),
    Field("stop_words", _S, "strings that end the answer; not part of it", is_list=True),
    Field("bad_words", _S, "not supported", is_list=True, is_refused=True, neutral=("",)),
    Field("ignore_eos", _B, "go on past the end-of-sequence token", default=False),
    Field("exclude_input_in_output", _B, "false puts text_input first", default=True),
    Field("return_log_probs", _B, "fill output_log_probs", default=False),
    Field("return_num_input_tokens", _B, "fill num_input_tokens", default=True),
    Field("return_num_output_tokens", _B, "fill num_output_tokens", default=True),
    Field("enable_thinking", _B, "let the model think first; only with messages"),
    Field("thinking_budget", _I, "not supported", is_refused=True, neutral=(-1,)),
    Field("block_length", _I, "tokens decided together", low=1, high=INT32_MAX),
    Field("denoise_steps", _I, "fixed number of previews per block", low=1, high=INT32_MAX),
    Field("threshold", _F, "confidence that accepts a position", low=0, high=1),
    Field("editing_threshold", _F, "not supported", is_refused=True, neutral=(1.0,)),
    Field("algorithm", _S, "decoding rule", choices=("low_confidence", "entropy_bound")),
    Field("quality", _S, "named threshold", choices=tuple(QUALITY_THRESHOLDS)),
    Field("sampling_parameters", _S, "JSON object of any of these fields; tensors win"),
    Field("guided_decoding_guide_type", _S, "not supported", is_refused=True, neutral=("",)),
    Field("guided_decoding_guide", _S, "not supported", is_refused=True, neutral=("",)),
)

BY_NAME: dict[str, Field] = {field.name: field for field in FIELDS}
CANONICAL: dict[str, str] = {
    spelling: field.name for field in FIELDS for spelling in (field.name, *field.aliases)
}
# What other servers understand and this one does not: better refused than dropped.
KNOWN_ELSEWHERE = frozenset(
    {
        "beam_width",
        "best_of",
        "diffusion_block_length",
        "diffusion_steps",
        "diffusion_threshold",
        "early_stopping",
        "end_id",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "length_penalty",
        "logit_bias",
        "logprobs",
        "lora_name",
        "lora_task_id",
        "min_p",
        "n",
        "num_return_sequences",
        "pad_id",
        "request_output_len",
        "response_format",
        "runtime_top_k",
        "runtime_top_p",
        "stop",
        "stop_token_ids",
        "structured_outputs",
        "typical_p",
        "use_beam_search",
    }
)


@dataclass(frozen=True)
class Output:
    """One public output tensor of the ensemble and of ``unary``."""

    name: str
    kind: Kind
    meaning: str
    is_list: bool = False

    @property
    def dims(self) -> str:
        return "-1" if self.is_list else "1"


OUTPUTS: tuple[Output, ...] = (
    Output("text_output", _S, "new text"),
    Output("reasoning_output", _S, "new text of the think block"),
    Output("tool_calls", _S, "JSON list of the tool calls completed in this response"),
    Output("has_malformed_tool_call", _B, "text_output holds what began like a call and is none"),
    Output("finish_reason", _S, "empty until the last response"),
    Output("stop_reason", _S, "stop string or token id that ended the answer"),
    Output("num_input_tokens", _I, "tokens of the prompt"),
    Output("num_output_tokens", _I, "tokens of this response"),
    Output("block_index", _I, "number of the (last) block in this response"),
    Output("denoise_steps_used", _I, "previews spent on this response"),
    Output("threshold_used", _F, "lowest threshold of this response's blocks; -1: none had one"),
    Output("is_final", _B, "true on the last response"),
    Output("output_log_probs", _F, "one per token, when asked for", is_list=True),
)
