"""Configuration of SDAR and SDAR-MoE: a Qwen3 trunk with block-causal commits.

Knows their keys; knows nothing of tensors or of the engine.
"""

from collections.abc import Mapping
from typing import Any

from blockdiff.config.attention import (
    ATTENTION_ONLY,
    BLOCK_CAUSAL,
    SOFTMAX_ONLY,
    AttentionConfig,
    Family,
    RouterConfig,
    all_layers,
    build_config,
)
from blockdiff.config.keys import Keys, check_maths_keys

_ONLY: dict[str, tuple[Any, ...]] = {
    **ATTENTION_ONLY,
    **SOFTMAX_ONLY,
    "mlp_only_layers": ([], None),
    "decoder_sparse_step": (1, None),
}
_DENSE = Family("sdar", BLOCK_CAUSAL, 4, 0.85, 1_000_000.0)
_MOE = Family("sdar_moe", BLOCK_CAUSAL, 4, 0.85, 1_000_000.0)


def parse_sdar(keys: Keys, generation: Mapping[str, Any]) -> AttentionConfig:
    """A dense Qwen3 trunk with SDAR's block keys."""
    check_maths_keys(keys, _ONLY)
    return build_config(_DENSE, keys, generation, None, all_layers(keys))


def parse_sdar_moe(keys: Keys, generation: Mapping[str, Any]) -> AttentionConfig:
    """A Qwen3-MoE trunk with SDAR's block keys."""
    check_maths_keys(keys, _ONLY)
    num_experts = keys.integer("num_experts")
    router = RouterConfig(
        num_experts=num_experts,
        num_experts_per_tok=keys.integer("num_experts_per_tok", high=num_experts),
        moe_intermediate_size=keys.integer("moe_intermediate_size"),
        is_normalised=keys.boolean("norm_topk_prob", default=False),
    )
    return build_config(_MOE, keys, generation, router, ())
