"""Fields that say what an answer must or must not contain."""

from blockdiff.serving.fields.kinds import Field, Kind

CONSTRAINTS: tuple[Field, ...] = (
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
