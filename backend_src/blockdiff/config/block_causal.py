"""Configuration of the attention-only families whose commits are block-causal: LLaDA2 and SDAR.

Knows their keys; knows nothing of tensors or of the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockdiff.config.keys import Keys, check_maths_keys
from blockdiff.config.parts import FULL, read_eos_tokens, read_rope, read_threshold

# keys with only one supported value; any other would be computed wrongly in silence
_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish", None),
    "use_sliding_window": (False, None),
    "quantization_config": (None,),
    "final_logit_softcapping": (None,),
    "attn_logit_softcapping": (None,),
    "shift_logits": (False, None),
    "logit_scale": (1, 1.0, None),
    "attention_bias": (False, None),
    "norm_topk_prob": (True, None),
    "block_anchor": ("zero", None),
    "expert_coreset": (0, False, None),
}
_SDAR_ONLY: dict[str, tuple[Any, ...]] = {
    **_ONLY,
    "expert_capacity": (0, None),
    "mlp_only_layers": ([], None),
    "decoder_sparse_step": (1, None),
    "num_shared_experts": (0, None),
    "scoring_func": ("softmax", None),
    "score_function": ("softmax", None),
}
_LLADA2_ONLY: dict[str, tuple[Any, ...]] = {
    **_ONLY,
    "use_bias": (False, None),
    "use_qkv_bias": (False, None),
    "use_qk_norm": (True, None),
    "norm_head": (False, None),
    "score_function": ("sigmoid", None),
    "router_dtype": ("fp32", "float32", None),
    "delete_token_id": (None,),
    "split_token_id": (None,),
}


@dataclass(frozen=True)
class RouterConfig:
    """How a layer's experts are chosen; groups, capacity and bias are of sigmoid routers only."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_intermediate_size: int = 0  # of the shared expert, which has no gate; 0: none
    is_sigmoid: bool = False
    has_bias: bool = False
    groups: int = 1
    kept_groups: int = 1
    capacity: int = 0  # experts that a block shares, instead of groups; 0: every row by itself
    scale: float = 1.0


@dataclass(frozen=True)
class BlockCausalConfig:
    """Everything an attention-only block-causal model needs to know about itself."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    dense_layers: int  # the first so many have a dense MLP, the others experts
    intermediate_size: int  # of dense layers; 0 where there are none
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    router: RouterConfig | None  # None: no layer has experts
    block_size: int
    default_threshold: float
    mask_token_id: int
    eos_token_ids: tuple[int, ...]

    @property
    def layer_types(self) -> tuple[str, ...]:
        """As in the hybrid trunk's config: every layer is full attention."""
        return (FULL,) * self.num_hidden_layers


def parse_sdar(keys: Keys, generation: Mapping[str, Any]) -> BlockCausalConfig:
    """A dense Qwen3 trunk with SDAR's block keys."""
    check_maths_keys(keys, _SDAR_ONLY)
    return _build("sdar", keys, generation, None, keys.integer("num_hidden_layers"))


def parse_sdar_moe(keys: Keys, generation: Mapping[str, Any]) -> BlockCausalConfig:
    """A Qwen3-MoE trunk with SDAR's block keys."""
    check_maths_keys(keys, _SDAR_ONLY)
    num_experts = keys.integer("num_experts")
    router = RouterConfig(
        num_experts=num_experts,
        num_experts_per_tok=keys.integer("num_experts_per_tok", high=num_experts),
        moe_intermediate_size=keys.integer("moe_intermediate_size"),
    )
    return _build("sdar_moe", keys, generation, router, 0)


def parse_llada2(keys: Keys, generation: Mapping[str, Any]) -> BlockCausalConfig:
    """LLaDA2.0 to 2.2: sigmoid router with bias and groups or blocks, dense first layers."""
    check_maths_keys(keys, _LLADA2_ONLY)
    count = keys.integer("num_hidden_layers")
    dense = keys.integer("first_k_dense_replace", default=0, low=0, high=count)
    return _build("llada2_moe", keys, generation, _llada2_router(keys), dense)


def _llada2_router(keys: Keys) -> RouterConfig:
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
    chosen = keys.integer("num_experts_per_tok", high=num_experts)
    return keys.integer("expert_capacity", low=chosen, high=num_experts)


# what a family uses for keys that its configs may leave out
_DEFAULTS: dict[str, dict[str, Any]] = {
    "sdar": {"block": 4, "threshold": 0.85, "share": 1.0, "base": 1_000_000.0},
    "sdar_moe": {"block": 4, "threshold": 0.85, "share": 1.0, "base": 1_000_000.0},
    "llada2_moe": {"block": 32, "threshold": 0.95, "share": 0.5, "base": 600_000.0},
}


def _build(
    family: str, keys: Keys, generation: Mapping[str, Any], router: RouterConfig | None, dense: int
) -> BlockCausalConfig:
    defaults = _DEFAULTS[family]
    vocab_size = keys.integer("vocab_size")
    head_dim = keys.integer("head_dim", default=128)
    rotary_dim, theta = read_rope(keys, head_dim, defaults["share"], defaults["base"])
    return BlockCausalConfig(
        model_type=family,
        vocab_size=vocab_size,
        hidden_size=keys.integer("hidden_size"),
        num_hidden_layers=keys.integer("num_hidden_layers"),
        dense_layers=dense,
        intermediate_size=keys.integer("intermediate_size") if dense else 0,
        rms_norm_eps=keys.number("rms_norm_eps", default=1e-6, low=0.0, high=1.0),
        max_position_embeddings=keys.integer("max_position_embeddings", default=32768),
        tie_word_embeddings=keys.boolean("tie_word_embeddings", default=False),
        num_attention_heads=keys.multiple("num_attention_heads", "num_key_value_heads"),
        num_key_value_heads=keys.integer("num_key_value_heads"),
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=theta,
        router=router,
        block_size=keys.integer("block_size", default=defaults["block"], high=4096),
        default_threshold=read_threshold(keys, defaults["threshold"]),
        mask_token_id=keys.integer("mask_token_id", low=0, high=vocab_size - 1),
        eos_token_ids=read_eos_tokens(keys, generation, vocab_size),
    )
