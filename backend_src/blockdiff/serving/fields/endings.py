"""Fields that say where an answer ends."""

from blockdiff.serving.fields.kinds import INT32_MAX, Field, Kind

# Of a server that sets no others.
MAX_STOP_WORDS = 16
MAX_STOP_WORD_CHARACTERS = 256
# Of all stop words of a request together, whatever the server allows.
MAX_STOP_CHARACTERS = 65536

ENDINGS: tuple[Field, ...] = (
    Field(
        "max_tokens",
        Kind.INT32,
        "most tokens to generate; the server and the context may allow fewer",
        low=1,
        high=INT32_MAX,
    ),
    Field(
        "min_tokens",
        Kind.INT32,
        "tokens before EOS or a stop string may end the answer",
        low=0,
        high=INT32_MAX,
        aliases=("min_length",),
        default=0,
    ),
    Field(
        "stop_words",
        Kind.STRING,
        "strings that end the answer; the first one completed counts, of several the longest",
        is_list=True,
        text_range=f"up to {MAX_STOP_WORDS} strings of up to {MAX_STOP_WORD_CHARACTERS} "
        "characters, or what the server is set to",
    ),
    Field(
        "stop_token_ids",
        Kind.INT32,
        "tokens that end the answer besides the model's own, also with `ignore_eos`",
        low=0,
        high=INT32_MAX,
        is_list=True,
    ),
    Field(
        "include_stop_str_in_output",
        Kind.BOOL,
        "whether the answer has the text of the stop string or token that ended it",
        default=False,
    ),
    Field("ignore_eos", Kind.BOOL, "go on past the end-of-sequence token", default=False),
)
