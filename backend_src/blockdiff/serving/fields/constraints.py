"""Fields that say what an answer must or must not contain."""

from blockdiff.serving.fields.kinds import INT32_MAX, Field, Kind

CONSTRAINTS: tuple[Field, ...] = (
    Field(
        "pinned",
        Kind.STRING,
        "tokens given by place, from the first output token; see `docs/decoding.md`",
        text_range='JSON: `{"5": 17}` or `[[5, 17]]`',
        is_json=True,
        honoured_by="all, but not where editing inserts and deletes",
    ),
    Field(
        "suffix",
        Kind.STRING,
        "text that the answer ends with, behind `gap` tokens; sets `max_tokens` and `min_tokens` "
        "if they are not given",
        honoured_by="all, but not where editing inserts and deletes",
    ),
    Field("gap", Kind.INT32, "tokens to fill before `suffix`", low=1, high=INT32_MAX),
    Field("bad_words", Kind.STRING, "not supported", is_list=True, is_refused=True, neutral=("",)),
    Field(
        "guided_decoding_guide_type",
        Kind.STRING,
        "not supported",
        is_refused=True,
        neutral=("",),
    ),
    Field("guided_decoding_guide", Kind.STRING, "not supported", is_refused=True, neutral=("",)),
)
