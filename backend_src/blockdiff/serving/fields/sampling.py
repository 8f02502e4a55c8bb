"""Fields that say how a token is drawn from its distribution."""

from blockdiff.limits import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_PENALTY,
    MAX_RAMP_BOOST,
    MAX_RAMP_SLOPE,
    MAX_RAMP_START,
    MAX_REPETITION_PENALTY,
)
from blockdiff.serving.fields.kinds import INT32_MAX, Field, Kind

# diffusion_gemma draws by a schedule of temperatures of its own
BY_MASKS = "models that begin with masks"
_RAMP = (
    f"a JSON object: start 0 to {MAX_RAMP_START}, slope 0 to {MAX_RAMP_SLOPE:g}, "
    f"most 0 to {MAX_RAMP_BOOST:g}"
)

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
    Field(
        "min_p",
        Kind.FP32,
        "least probability of a drawn token, as a share of the most probable one's; 0 is off",
        low=0,
        high=1,
        default=0.0,
    ),
    Field(
        "repetition_penalty",
        Kind.FP32,
        "divides positive logits of tokens that the answer holds, multiplies negative ones; "
        "1 is off",
        low=0,
        high=MAX_REPETITION_PENALTY,
        is_low_excluded=True,
        default=1.0,
    ),
    Field(
        "presence_penalty",
        Kind.FP32,
        "taken off the logits of tokens that the answer holds",
        low=-MAX_PENALTY,
        high=MAX_PENALTY,
        default=0.0,
    ),
    Field(
        "frequency_penalty",
        Kind.FP32,
        "taken off them for each time that it holds them",
        low=-MAX_PENALTY,
        high=MAX_PENALTY,
        default=0.0,
    ),
    Field(
        "logit_bias",
        Kind.STRING,
        "what logits get, by token id",
        text_range=f"a JSON object of up to {MAX_BIASES} token ids, each with "
        f"{-MAX_BIAS:g} to {MAX_BIAS:g}",
        is_json=True,
    ),
    Field(
        "stop_ramp",
        Kind.STRING,
        "a boost of the end tokens that grows with the answer; not with `ignore_eos`",
        text_range=_RAMP,
        is_json=True,
    ),
    Field(
        "think_end_ramp",
        Kind.STRING,
        "the same for `</think>`, until it is there; not where thinking is over or off",
        text_range=_RAMP,
        is_json=True,
        honoured_by="models with a `</think>` token",
    ),
)
