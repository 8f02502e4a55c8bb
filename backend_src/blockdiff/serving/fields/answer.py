"""Fields that say what responses hold, and the outputs themselves."""

from blockdiff.serving.fields.kinds import Field, Kind, Output

ANSWER: tuple[Field, ...] = (
    Field("stream", Kind.BOOL, "one response per block instead of one in all", default=False),
    Field(
        "exclude_input_in_output",
        Kind.BOOL,
        "false puts `text_input` first; true only with `messages`",
        default=True,
    ),
    Field("return_log_probs", Kind.BOOL, "fill `output_log_probs`", default=False),
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
    Output("block_index", Kind.INT32, "number of the (last) block in this response"),
    Output("denoise_steps_used", Kind.INT32, "previews spent on this response"),
    Output(
        "threshold_used",
        Kind.FP32,
        "lowest threshold of this response's blocks; -1: none had one",
    ),
    Output("is_final", Kind.BOOL, "true on the last response"),
    Output("output_log_probs", Kind.FP32, "one per token, when asked for", is_list=True),
)
