"""Fields that say how a token is drawn from its distribution."""

from blockdiff.serving.fields.kinds import INT32_MAX, Field, Kind

# diffusion_gemma draws by a schedule of temperatures of its own
BY_MASKS = "models that begin with masks"

SAMPLING: tuple[Field, ...] = (
    Field(
        "temperature",
        Kind.FP32,
        "0 is greedy",
        low=0,
        high=100,
        default=0.0,
        honoured_by=BY_MASKS,
    ),
    Field("top_k", Kind.INT32, "0 is off", low=0, high=INT32_MAX, default=0, honoured_by=BY_MASKS),
    Field(
        "top_p",
        Kind.FP32,
        "1 is off",
        low=0,
        high=1,
        is_low_excluded=True,
        default=1.0,
        honoured_by=BY_MASKS,
    ),
    Field(
        "seed",
        Kind.UINT64,
        "sampling seed; unset draws one at random",
        low=0,
        high=2**64 - 1,
        aliases=("random_seed",),
    ),
    Field("repetition_penalty", Kind.FP32, "not supported", is_refused=True, neutral=(1.0,)),
    Field("presence_penalty", Kind.FP32, "not supported", is_refused=True, neutral=(0.0,)),
    Field("frequency_penalty", Kind.FP32, "not supported", is_refused=True, neutral=(0.0,)),
)
