"""Fields that say what is asked: the prompt, its tools, how the model may think."""

from blockdiff.serving.fields.kinds import INT32_MAX, Field, Kind

MAX_MESSAGES = 4096
MAX_TOOLS = 128

PROMPT: tuple[Field, ...] = (
    Field("text_input", Kind.STRING, "raw prompt; control tokens in it stay text; or `messages`"),
    Field(
        "messages",
        Kind.STRING,
        "JSON list of chat messages, rendered by the model's template",
        text_range=f"a JSON list of 1 to {MAX_MESSAGES} messages",
        is_json=True,
    ),
    Field(
        "tools",
        Kind.STRING,
        "JSON list of tools in OpenAI form; only with `messages`",
        text_range=f"a JSON list of up to {MAX_TOOLS} tools",
        is_json=True,
    ),
    Field(
        "tool_choice",
        Kind.STRING,
        "whether `tools` may or must be called, or which one; auto where there are tools",
        text_range='none, auto, required or {"type": "function", "function": {"name": ...}}',
        is_json=True,
    ),
    Field("enable_thinking", Kind.BOOL, "let the model think first; only with `messages`"),
    Field(
        "thinking_budget",
        Kind.INT32,
        "most tokens of the think block; -1 is no limit; only with `messages`",
        low=-1,
        high=INT32_MAX,
        default=-1,
        honoured_by="models with think blocks",
    ),
)
