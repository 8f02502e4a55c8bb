"""Fields that say how a block is decided."""

from blockdiff.serving.fields.kinds import INT32_MAX, Field, Kind

# quality -> threshold; None leaves the model's own default.
QUALITY_THRESHOLDS: dict[str, float | None] = {"fast": 0.7, "balanced": None, "high": 0.98}
# Gives way under load on servers that allow it; all other requests keep what they ask for.
ELASTIC_QUALITY = "balanced"

DECODING: tuple[Field, ...] = (
    Field("block_length", Kind.INT32, "tokens decided together", low=1, high=INT32_MAX),
    Field("denoise_steps", Kind.INT32, "fixed number of previews per block", low=1, high=INT32_MAX),
    Field(
        "threshold",
        Kind.FP32,
        "confidence that accepts a position",
        low=0,
        high=1,
        honoured_by="`low_confidence`",
    ),
    Field("editing_threshold", Kind.FP32, "not supported", is_refused=True, neutral=(1.0,)),
    Field(
        "algorithm",
        Kind.STRING,
        "decoding rule",
        choices=("low_confidence", "entropy_bound"),
        honoured_by="the model's own algorithms",
    ),
    Field(
        "quality",
        Kind.STRING,
        "named threshold",
        choices=tuple(QUALITY_THRESHOLDS),
        honoured_by="`low_confidence`",
    ),
)
