"""Configuration of LLaDA2.0 to 2.2: block-causal commits, a sigmoid router by groups or blocks.

Knows their keys; knows nothing of tensors or of the engine.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from blockdiff.config.attention import (
    ATTENTION_ONLY,
    BLOCK_CAUSAL,
    AttentionConfig,
    Family,
    RouterConfig,
    build_config,
)
from blockdiff.config.keys import Keys, check_maths_keys

_ONLY: dict[str, tuple[Any, ...]] = {
    **ATTENTION_ONLY,
    "norm_topk_prob": (True, None),
    "use_bias": (False, None),
    "use_qkv_bias": (False, None),
    "use_qk_norm": (True, None),
    "norm_head": (False, None),
    "score_function": ("sigmoid", None),
    "router_dtype": ("fp32", "float32", None),
}
_FAMILY = Family("llada2_moe", BLOCK_CAUSAL, 32, 0.95, 600_000.0, rotary_share=0.5)


def parse_llada2(keys: Keys, generation: Mapping[str, Any]) -> AttentionConfig:
    """LLaDA2.0 to 2.2: sigmoid router with bias and groups or blocks, dense first layers."""
    check_maths_keys(keys, _ONLY)
    count = keys.integer("num_hidden_layers")
    dense = keys.integer("first_k_dense_replace", default=0, low=0, high=count)
    config = build_config(_FAMILY, keys, generation, _router(keys), tuple(range(dense)))
    return replace(config, length_tokens=_length_tokens(keys, config))


def _length_tokens(keys: Keys, config: AttentionConfig) -> tuple[int, int] | None:
    names = ("delete_token_id", "split_token_id")
    if all(keys.get(name) is None for name in names):
        return None
    delete, split = (keys.integer(name, low=0, high=config.vocab_size - 1) for name in names)
    taken = {config.mask_token_id, *config.eos_token_ids}
    for name, token, others in zip(names, (delete, split), (taken, taken | {delete}), strict=True):
        if token in others:
            raise keys.error(name, "a token that is not the mask, an end or the other of the two")
    return delete, split


def _router(keys: Keys) -> RouterConfig:
    num_experts = keys.integer("num_experts")
    capacity, groups, kept = _block_capacity(keys, num_experts), 1, 1
    if not capacity:
        groups = keys.integer("n_group", default=8, high=num_experts)
        kept = keys.integer("topk_group", default=4, high=groups)
    if not capacity and (num_experts % groups or num_experts // groups < 2):
        raise keys.error("n_group", f"a divisor of num_experts {num_experts}, 2 experts or more")
    inner = keys.integer("moe_intermediate_size")
    reachable = capacity or kept * (num_experts // groups)
    return RouterConfig(
        num_experts=num_experts,
        num_experts_per_tok=keys.integer("num_experts_per_tok", high=reachable),
        moe_intermediate_size=inner,
        shared_intermediate_size=inner * keys.integer("num_shared_experts", default=0, low=0),
        is_sigmoid=True,
        has_bias=keys.boolean("moe_router_enable_expert_bias", default=True),
        groups=groups,
        kept_groups=kept,
        capacity=capacity,
        scale=keys.number("routed_scaling_factor", default=2.5, low=0.0, high=1e4),
    )


def _block_capacity(keys: Keys, num_experts: int) -> int:
    """``expert_capacity`` of LLaDA2.2, 0 where there is none. Groups have no part in it."""
    if not keys.get("expert_capacity"):
        return keys.integer("expert_capacity", default=0, low=0)
    if not keys.boolean("moe_router_enable_expert_bias", default=True):
        raise keys.error("moe_router_enable_expert_bias", "true where expert_capacity is given")
    keys.read |= {"n_group", "topk_group"}
    chosen = keys.integer("num_experts_per_tok", high=num_experts)
    return keys.integer("expert_capacity", low=chosen, high=num_experts)
