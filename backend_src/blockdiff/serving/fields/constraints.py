"""Fields that say what an answer must or must not contain."""

from blockdiff.serving.fields.kinds import INT32_MAX, Field, Kind

NOT_MOVED = "all, but not where editing inserts and deletes"
MAX_BAD_WORDS = 32
MAX_BAD_WORD_CHARACTERS = 256

CONSTRAINTS: tuple[Field, ...] = (
    Field(
        "pinned",
        Kind.STRING,
        "tokens given by place, from the first output token; see `docs/decoding.md`",
        text_range='JSON: `{"5": 17}` or `[[5, 17]]`',
        is_json=True,
        honoured_by=NOT_MOVED,
    ),
    Field(
        "suffix",
        Kind.STRING,
        "text that the answer ends with, behind `gap` tokens; sets `max_tokens` and `min_tokens` "
        "if they are not given",
        honoured_by=NOT_MOVED,
    ),
    Field("gap", Kind.INT32, "tokens to fill before `suffix`", low=1, high=INT32_MAX),
    Field(
        "bad_words",
        Kind.STRING,
        "strings that the answer, thinking included, never holds",
        is_list=True,
        text_range=f"up to {MAX_BAD_WORDS} strings of up to {MAX_BAD_WORD_CHARACTERS} characters",
        honoured_by=NOT_MOVED,
    ),
    Field(
        "guided_decoding_guide_type",
        Kind.STRING,
        "what language `guided_decoding_guide` is in; `json`: any JSON object, without a guide",
        choices=("json", "json_schema", "regex", "ebnf_grammar"),
        honoured_by=NOT_MOVED,
    ),
    Field(
        "guided_decoding_guide",
        Kind.STRING,
        "what the answer, after thinking, must be; see `docs/decoding.md`",
        text_range="a JSON schema, a regular expression, or a grammar in GBNF or Lark",
        honoured_by=NOT_MOVED,
    ),
)
