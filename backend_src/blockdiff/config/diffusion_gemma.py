"""Configuration of ``diffusion_gemma``: a Gemma backbone used as encoder and as canvas decoder.

Knows its keys; knows nothing of tensors or of the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockdiff.config.keys import Keys, check_maths_keys
from blockdiff.config.parts import FULL, SLIDING, read_eos_tokens

# keys with only one supported value; any other would be computed wrongly in silence
_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh", None),
    "attention_bias": (False, None),
    # "vision" matters for image tokens only
    "use_bidirectional_attention": ("vision", None),
    "attention_k_eq_v": (True, None),
    "enable_moe_block": (True, None),
    "hidden_size_per_layer_input": (0, None),
    "num_kv_shared_layers": (0, None),
    "use_double_wide_mlp": (False, None),
    "attn_logit_softcapping": (None,),
    "tie_word_embeddings": (True, None),
    "use_sliding_window": (True, None),
    "num_shared_experts": (0, None),
    "norm_topk_prob": (True, None),
    "routed_scaling_factor": (1, 1.0, None),
    "rope_scaling": (None,),
    "shift_logits": (False, None),
}


@dataclass(frozen=True)
class Rotary:
    """Rotary positions of one kind of layer.

    Pairs (i, i + head_dim / 2) turn by theta^(-2i / head_dim) per position for i < pairs; the
    others do not turn.
    """

    theta: float
    pairs: int


@dataclass(frozen=True)
class AttentionShape:
    """What differs between sliding and full attention layers."""

    kv_heads: int
    head_dim: int
    rotary: Rotary
    window: int | None  # positions that a causal row sees, its own included; None: all
    has_value_projection: bool  # otherwise the values are the key projection's output

    def kept_positions(self, max_context: int) -> int:
        """Committed positions that a slot of ``max_context`` tokens has to keep."""
        return max_context if self.window is None else min(self.window - 1, max_context)


@dataclass(frozen=True)
class UniformDefaults:
    """How a canvas is denoised when a request does not say (entropies in nats)."""

    denoise_steps: int
    entropy_bound: float
    t_min: float
    t_max: float
    stability_threshold: int
    confidence_threshold: float


@dataclass(frozen=True)
class DiffusionGemmaConfig:
    """Everything a DiffusionGemma text model needs to know about itself."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int  # of the dense MLPs and of self-conditioning
    layer_types: tuple[str, ...]
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool  # always true
    num_attention_heads: int
    sliding: AttentionShape
    full: AttentionShape
    final_logit_softcapping: float
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    block_size: int  # the canvas length
    diffusion: UniformDefaults
    eos_token_ids: tuple[int, ...]

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layer_types)

    def attention(self, layer: int) -> AttentionShape:
        """The shape of ``layer``'s attention."""
        return self.full if self.layer_types[layer] == FULL else self.sliding


def parse_diffusion_gemma(keys: Keys, generation: Mapping[str, Any]) -> DiffusionGemmaConfig:
    """The text part; image keys are left aside."""
    check_maths_keys(keys, _ONLY)
    vocab_size = keys.integer("vocab_size")
    num_experts = keys.integer("num_experts")
    return DiffusionGemmaConfig(
        model_type="diffusion_gemma",
        vocab_size=vocab_size,
        hidden_size=keys.integer("hidden_size"),
        intermediate_size=keys.integer("intermediate_size"),
        layer_types=_layer_types(keys),
        rms_norm_eps=keys.number("rms_norm_eps", default=1e-6, low=0.0, high=1.0),
        max_position_embeddings=keys.integer("max_position_embeddings", default=131072),
        tie_word_embeddings=True,
        num_attention_heads=keys.integer("num_attention_heads"),
        sliding=_sliding(keys),
        full=_full(keys),
        final_logit_softcapping=keys.number(
            "final_logit_softcapping", default=30.0, low=0.0, high=1e6
        ),
        num_experts=num_experts,
        num_experts_per_tok=keys.integer("top_k_experts", high=num_experts),
        moe_intermediate_size=keys.integer("moe_intermediate_size"),
        block_size=keys.integer("canvas_length", default=256, high=4096),
        diffusion=_diffusion(generation),
        eos_token_ids=read_eos_tokens(keys, generation, vocab_size),
    )


def _layer_types(keys: Keys) -> tuple[str, ...]:
    count = keys.integer("num_hidden_layers")
    types = keys.get("layer_types")
    if types is None:
        types = [FULL if (layer + 1) % 6 == 0 else SLIDING for layer in range(count)]
        types[-1] = FULL
    is_known = isinstance(types, list) and all(kind in (SLIDING, FULL) for kind in types)
    # the last layer of this family is full whatever the list says: refuse a list that disagrees
    if not is_known or len(types) != count or types[-1] != FULL:
        raise keys.error(
            "layer_types", f"a list of {count} entries {SLIDING!r} or {FULL!r}, the last {FULL!r}"
        )
    return tuple(types)


def _sliding(keys: Keys) -> AttentionShape:
    head_dim = _even(keys, "head_dim", 256)
    return AttentionShape(
        kv_heads=_kv_heads(keys, "num_key_value_heads"),
        head_dim=head_dim,
        rotary=_rotary(keys, SLIDING, head_dim, {"rope_type": "default", "rope_theta": 1e4}),
        window=keys.integer("sliding_window", default=512, low=2),
        has_value_projection=True,
    )


def _full(keys: Keys) -> AttentionShape:
    own = _overrides(keys)
    head_dim = _even(own, "head_dim", 512)
    has_heads = own.get("num_key_value_heads") is not None
    defaults = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    return AttentionShape(
        kv_heads=_kv_heads(own if has_heads else keys, "num_key_value_heads"),
        head_dim=head_dim,
        rotary=_rotary(keys, FULL, head_dim, defaults),
        window=None,
        has_value_projection=False,
    )


def _overrides(keys: Keys) -> Keys:
    """What full attention layers have of their own.

    Published files name it with ``global_`` keys; files written by transformers name, layer by
    layer, what differs from the sliding layers.
    """
    shared = {"num_attention_heads": keys.get("num_attention_heads")}
    by_layer = keys.get("per_layer_config")
    if by_layer is None:
        named = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
        values = {own: keys.get(key) for own, key in named.items()}
        return Keys({**shared, **values}, "full attention layers, ")
    full = [str(layer) for layer, kind in enumerate(_layer_types(keys)) if kind == FULL]
    own: Mapping[str, Any] = {}
    if by_layer != {}:
        entries = list(by_layer.values()) if isinstance(by_layer, Mapping) else []
        is_uniform = all(isinstance(e, Mapping) and e == entries[0] for e in entries)
        if not is_uniform or not isinstance(by_layer, Mapping) or sorted(by_layer) != sorted(full):
            raise keys.error("per_layer_config", f"the same object for each of the layers {full}")
        own = entries[0]
        if not set(own) <= {"head_dim", "num_key_value_heads"}:
            raise keys.error("per_layer_config", "head_dim and num_key_value_heads by layer")
    return Keys({**shared, "head_dim": keys.get("head_dim"), **own}, "full attention layers, ")


def _kv_heads(keys: Keys, key: str) -> int:
    keys.multiple("num_attention_heads", key)
    return keys.integer(key)


def _even(keys: Keys, key: str, default: int) -> int:
    value = keys.integer(key, default=default)
    if value % 2:
        raise keys.error(key, "an even number")
    return value


def _rotary(keys: Keys, kind: str, head_dim: int, defaults: Mapping[str, Any]) -> Rotary:
    by_kind = keys.get("rope_parameters")
    if by_kind is None:
        by_kind = {kind: defaults}
    if not isinstance(by_kind, Mapping) or not isinstance(by_kind.get(kind), Mapping):
        raise keys.error("rope_parameters", f"an object with the objects {SLIDING} and {FULL}")
    rope = Keys(by_kind[kind], f"rope_parameters.{kind}.")
    check_maths_keys(rope, {"factor": (1, 1.0, None)})
    rope_type = rope.choice("rope_type", ("default", "proportional"), default="default")
    theta = rope.number("rope_theta", default=defaults["rope_theta"], low=1.0, high=1e12)
    share = rope.number("partial_rotary_factor", default=1.0, low=0.0, high=1.0)
    pairs = int(share * head_dim // 2)
    if pairs < 1 or (rope_type == "default" and share != 1.0):
        raise rope.error(
            "partial_rotary_factor", f"1 for rope_type default, else 1 pair of {head_dim} or more"
        )
    return Rotary(theta, pairs)


def _diffusion(generation: Mapping[str, Any]) -> UniformDefaults:
    file = Keys(generation, "generation_config.json: ")
    sampler = file.get("sampler_config") or {}
    if not isinstance(sampler, Mapping):
        raise file.error("sampler_config", "an object with entropy_bound")
    own = Keys(sampler, "generation_config.json: sampler_config.")
    own.choice("_cls_name", ("EntropyBoundSamplerConfig",), default="EntropyBoundSamplerConfig")
    t_min = file.number("t_min", default=0.4, low=0.0, high=100.0)
    t_max = file.number("t_max", default=0.8, low=0.0, high=100.0)
    if t_max < t_min:
        raise file.error("t_max", f"at least t_min {t_min}")
    return UniformDefaults(
        denoise_steps=file.integer("max_denoising_steps", default=48, high=4096),
        entropy_bound=own.number("entropy_bound", default=0.1, low=0.0, high=1e6),
        t_min=t_min,
        t_max=t_max,
        stability_threshold=file.integer("stability_threshold", default=1, low=0, high=4096),
        confidence_threshold=file.number("confidence_threshold", default=0.005, low=0.0, high=1e6),
    )
