"""Model configuration: a checkpoint's ``config.json``, read and checked once, never changed.

Knows the keys of the hybrid Gated DeltaNet trunk and which family a config is of; knows nothing
of tensors or of the engine.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdiff.config_block_causal import (
    BlockCausalConfig,
    parse_llada2,
    parse_sdar,
    parse_sdar_moe,
)
from blockdiff.config_keys import Keys, check_maths_keys
from blockdiff.config_parts import read_eos_tokens, read_rope, read_threshold
from blockdiff.errors import ConfigError

LINEAR = "linear_attention"
FULL = "full_attention"
BLOCK_ANCHORS = ("prompt_end", "zero")
DEFAULT_BLOCK = 32

# model_type in config.json -> family
MODEL_TYPES = {
    "clover_moe": "clover_moe",
    "qwen3_5_moe": "qwen3_5_moe",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "llada2_moe": "llada2_moe",
    "sdar": "sdar",
    "sdar_moe": "sdar_moe",
}
# families that are not of the hybrid trunk
_OTHER_PARSERS = {"llada2_moe": parse_llada2, "sdar": parse_sdar, "sdar_moe": parse_sdar_moe}


@dataclass(frozen=True)
class ModelConfig:
    """Everything a model of the hybrid trunk needs to know about itself."""

    model_type: str  # the family: clover_moe or qwen3_5_moe
    vocab_size: int
    hidden_size: int
    layer_types: tuple[str, ...]
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    block_size: int
    block_anchor: str
    default_threshold: float
    mask_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @property
    def conv_channels(self) -> int:
        """Channels of the depthwise convolution: q heads, k heads and v heads side by side."""
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * keys + self.linear_num_value_heads * self.linear_value_head_dim


AnyConfig = ModelConfig | BlockCausalConfig


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``, or a ConfigError that says what is wrong with the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: file not found") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must hold a JSON object, not {type(value).__name__}")
    return value


def load_config(model_dir: str | Path) -> AnyConfig:
    """Read ``config.json`` (and the eos ids of ``generation_config.json``) of a checkpoint."""
    folder = Path(model_dir)
    if not folder.is_dir():
        raise ConfigError(f"model folder {folder}: not found; give a folder with config.json")
    generation_path = folder / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}
    config = read_json(folder / "config.json")
    family = _family(config)
    if family in _OTHER_PARSERS:
        return _OTHER_PARSERS[family](Keys(config), generation)
    return parse_config(config, generation)


def parse_config(
    config: Mapping[str, Any], generation: Mapping[str, Any] | None = None
) -> ModelConfig:
    """Check a hybrid config mapping (a nested ``text_config`` is accepted) and freeze it."""
    family = _family(config)
    if family in _OTHER_PARSERS:
        allowed = sorted(set(MODEL_TYPES) - set(_OTHER_PARSERS))
        raise ConfigError(
            f"config.json: model_type {family!r} is not of the hybrid trunk; allowed: {allowed}"
        )
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise ConfigError("config.json: text_config must be an object")
    keys = Keys({**{k: v for k, v in config.items() if k != "text_config"}, **text})
    check_maths_keys(keys)
    return _build(family, keys, generation or {})


def _family(config: Mapping[str, Any]) -> str:
    declared = config.get("model_type")
    family = MODEL_TYPES.get(declared) if isinstance(declared, str) else None
    if family is None:
        raise ConfigError(
            f"config.json: model_type {declared!r} is not known; allowed: {sorted(MODEL_TYPES)}"
        )
    return family


def _build(family: str, keys: Keys, generation: Mapping[str, Any]) -> ModelConfig:
    head_dim = keys.integer("head_dim", default=256)
    rotary_dim, theta = read_rope(keys, head_dim, share=0.25, base=10_000_000.0)
    vocab_size = keys.integer("vocab_size")
    num_experts = keys.integer("num_experts")
    intermediate = keys.integer("moe_intermediate_size")
    return ModelConfig(
        model_type=family,
        vocab_size=vocab_size,
        hidden_size=keys.integer("hidden_size"),
        layer_types=_layer_types(keys),
        rms_norm_eps=keys.number("rms_norm_eps", default=1e-6, low=0.0, high=1.0),
        max_position_embeddings=keys.integer("max_position_embeddings", default=131072),
        tie_word_embeddings=keys.boolean("tie_word_embeddings", default=False),
        num_attention_heads=keys.multiple("num_attention_heads", "num_key_value_heads"),
        num_key_value_heads=keys.integer("num_key_value_heads"),
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=theta,
        linear_num_key_heads=keys.integer("linear_num_key_heads"),
        linear_num_value_heads=keys.multiple("linear_num_value_heads", "linear_num_key_heads"),
        linear_key_head_dim=keys.integer("linear_key_head_dim"),
        linear_value_head_dim=keys.integer("linear_value_head_dim"),
        linear_conv_kernel_dim=keys.integer("linear_conv_kernel_dim", low=2, high=64),
        num_experts=num_experts,
        num_experts_per_tok=keys.integer("num_experts_per_tok", high=num_experts),
        moe_intermediate_size=intermediate,
        shared_expert_intermediate_size=keys.integer("shared_expert_intermediate_size"),
        block_size=keys.integer("block_size", default=DEFAULT_BLOCK, high=4096),
        block_anchor=keys.choice("block_anchor", BLOCK_ANCHORS, default="prompt_end"),
        default_threshold=read_threshold(keys),
        mask_token_id=_mask_token(keys, family, vocab_size),
        eos_token_ids=read_eos_tokens(keys, generation, vocab_size),
    )


def _layer_types(keys: Keys) -> tuple[str, ...]:
    count = keys.integer("num_hidden_layers")
    types = keys.get("layer_types")
    if types is None:
        interval = keys.integer("full_attention_interval", default=4)
        return tuple(FULL if (i + 1) % interval == 0 else LINEAR for i in range(count))
    if (
        not isinstance(types, list)
        or len(types) != count
        or any(t not in (LINEAR, FULL) for t in types)
    ):
        raise keys.error("layer_types", f"a list of {count} entries, each {LINEAR!r} or {FULL!r}")
    return tuple(types)


def _mask_token(keys: Keys, family: str, vocab_size: int) -> int | None:
    if keys.get("mask_token_id") is None and family != "clover_moe":
        return None
    return keys.integer("mask_token_id", low=0, high=vocab_size - 1)
