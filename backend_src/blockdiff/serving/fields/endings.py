"""Fields that say where an answer ends."""

from blockdiff.serving.fields.kinds import INT32_MAX, Field, Kind

MAX_STOP_WORDS = 16
MAX_STOP_WORD_CHARACTERS = 256

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
        "strings that end the answer; not part of it",
        is_list=True,
        text_range=f"up to {MAX_STOP_WORDS} strings of up to {MAX_STOP_WORD_CHARACTERS} characters",
    ),
    Field("ignore_eos", Kind.BOOL, "go on past the end-of-sequence token", default=False),
)
