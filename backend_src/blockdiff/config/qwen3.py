"""Configuration of Qwen3 and Qwen3-MoE: causal commits, and blocks where there is a mask token.

Knows their keys; knows nothing of tensors or of the engine.
"""

from collections.abc import Mapping
from typing import Any

from blockdiff.config.attention import (
    ATTENTION_ONLY,
    CAUSAL,
    SOFTMAX_ONLY,
    AttentionConfig,
    Family,
    RouterConfig,
    all_layers,
    build_config,
)
from blockdiff.config.keys import Keys, check_maths_keys

_ONLY: dict[str, tuple[Any, ...]] = {
    **{key: allowed for key, allowed in ATTENTION_ONLY.items() if key != "block_anchor"},
    **SOFTMAX_ONLY,
}
_DENSE = Family("qwen3", CAUSAL, 32, 0.9, 10_000.0)
_MOE = Family("qwen3_moe", CAUSAL, 32, 0.9, 10_000.0, head_dim=None)


def parse_qwen3(keys: Keys, generation: Mapping[str, Any]) -> AttentionConfig:
    """A dense Qwen3; without a mask token it decodes autoregressively only."""
    check_maths_keys(keys, _ONLY)
    return build_config(_DENSE, keys, generation, None, all_layers(keys))


def parse_qwen3_moe(keys: Keys, generation: Mapping[str, Any]) -> AttentionConfig:
    """A Qwen3-MoE, some layers of which may be dense."""
    check_maths_keys(keys, _ONLY)
    num_experts = _num_experts(keys)
    router = RouterConfig(
        num_experts=num_experts,
        num_experts_per_tok=keys.integer("num_experts_per_tok", default=8, high=num_experts),
        moe_intermediate_size=keys.integer("moe_intermediate_size"),
        is_normalised=keys.boolean("norm_topk_prob", default=False),
    )
    step = keys.integer("decoder_sparse_step", default=1)
    layers, listed = all_layers(keys), keys.get("mlp_only_layers")
    listed = [] if listed is None else listed
    if not isinstance(listed, list) or any(type(i) is not int or i not in layers for i in listed):
        raise keys.error("mlp_only_layers", f"a list of layers from 0 to {layers[-1]}")
    dense = tuple(i for i in layers if i in listed or (i + 1) % step)
    return build_config(_MOE, keys, generation, router, dense)


def _num_experts(keys: Keys) -> int:
    """``num_experts``, which newer files write as ``num_local_experts``."""
    if keys.get("num_experts") is None:
        return keys.integer("num_local_experts")
    count = keys.integer("num_experts")
    if keys.get("num_local_experts", count) != count:
        raise keys.error("num_local_experts", f"absent or equal to num_experts ({count})")
    return count
