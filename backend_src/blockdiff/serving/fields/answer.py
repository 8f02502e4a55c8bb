"""Fields that say what responses hold, and the outputs themselves."""

from blockdiff.limits import MAX_TOP_LOG_PROBS
from blockdiff.serving.fields.kinds import Field, Kind, Output

ANSWER: tuple[Field, ...] = (
    Field("stream", Kind.BOOL, "one response per block instead of one in all", default=False),
    Field(
        "stream_denoise",
        Kind.BOOL,
        "a response after every preview too, with nothing but `canvas`; only with `stream`",
        default=False,
    ),
    Field(
        "running_priority",
        Kind.INT32,
        "among running requests the lowest number goes first; Triton's `priority` orders its queue",
        low=0,
        high=1000,
        default=0,
    ),
    Field(
        "exclude_input_in_output",
        Kind.BOOL,
        "false puts `text_input` first; true only with `messages`",
        default=True,
    ),
    Field("return_log_probs", Kind.BOOL, "fill `output_log_probs`", default=False),
    Field(
        "top_logprobs",
        Kind.INT32,
        "most probable tokens that `top_log_probs` lists for each token; 0 is off",
        low=0,
        high=MAX_TOP_LOG_PROBS,
        default=0,
    ),
    Field("return_step_map", Kind.BOOL, "fill `step_map`", default=False),
    Field("return_num_input_tokens", Kind.BOOL, "fill `num_input_tokens`", default=True),
    Field("return_num_output_tokens", Kind.BOOL, "fill `num_output_tokens`", default=True),
    Field(
        "sampling_parameters",
        Kind.STRING,
        "any of these fields; tensors win over it, it wins over request parameters",
        text_range="a JSON object",
    ),
)

OUTPUTS: tuple[Output, ...] = (
    Output("text_output", Kind.STRING, "new text"),
    Output("reasoning_output", Kind.STRING, "new text of the think block"),
    Output("tool_calls", Kind.STRING, "JSON list of the tool calls completed in this response"),
    Output(
        "has_malformed_tool_call",
        Kind.BOOL,
        "`text_output` holds what began like a tool call and is none",
    ),
    Output("finish_reason", Kind.STRING, "empty until the last response"),
    Output("stop_reason", Kind.STRING, "stop string or token id that ended the answer"),
    Output("num_input_tokens", Kind.INT32, "tokens of the prompt"),
    Output("num_output_tokens", Kind.INT32, "tokens of this response"),
    Output(
        "num_reasoning_tokens",
        Kind.INT32,
        "how many of `num_output_tokens` are now known to be thinking",
    ),
    Output("block_index", Kind.INT32, "number of the (last) block in this response"),
    Output("denoise_steps_used", Kind.INT32, "previews spent on this response"),
    Output(
        "threshold_used",
        Kind.FP32,
        "lowest threshold of this response's blocks; -1: none had one",
    ),
    Output("is_final", Kind.BOOL, "true on the last response"),
    Output(
        "canvas",
        Kind.STRING,
        "JSON of the open block after a preview, with `stream_denoise`; else empty",
    ),
    Output("output_log_probs", Kind.FP32, "one per token, when asked for", is_list=True),
    Output(
        "top_log_probs",
        Kind.STRING,
        "when asked for: JSON, per token a list of {id, token, log_prob}, most probable first, at "
        "the step that settled it",
    ),
    Output(
        "step_map",
        Kind.INT32,
        "when asked for: the step, from 0 in its block, that settled each token (the last edit of "
        "an edited one); -1: the request gave it",
        is_list=True,
    ),
)
