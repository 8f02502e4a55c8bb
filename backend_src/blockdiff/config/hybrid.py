"""Configuration of the hybrid Gated DeltaNet trunk: Clover and Qwen3.5 MoE.

Knows their keys; knows nothing of tensors or of the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockdiff.config.coreset import CoresetConfig, read_coreset
from blockdiff.config.keys import Keys, check_maths_keys
from blockdiff.config.parts import (
    BLOCK_ANCHORS,
    FULL,
    LINEAR,
    read_eos_tokens,
    read_mask_token,
    read_rope,
    read_threshold,
)

DEFAULT_BLOCK = 32
# how a preview mixes a block in Gated DeltaNet layers: by the causal scan, by two sweeps, or by a
# softmax with a history slot, which needs tensors of its own
FORMULATIONS = ("A", "B", "C")
# keys this trunk has only one value for; any other value would be computed wrongly in silence
_ONLY: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "attn_output_gate": (True, None),
    "hidden_act": ("silu", "swish", None),
    "num_shared_experts": (1, None),
    "norm_topk_prob": (True, None),
    "mlp_only_layers": ([], None),
    "decoder_sparse_step": (1, None),
    "sliding_window": (None,),
    "use_sliding_window": (False, None),
    "first_k_dense_replace": (0, None),
    "n_group": (1, 0, None),
    "topk_group": (1, 0, None),
    "routed_scaling_factor": (1, 1.0, None),
    "score_function": ("softmax", None),
    "scoring_func": ("softmax", None),
    "moe_router_enable_expert_bias": (False, None),
    "expert_capacity": (0, None),
    "final_logit_softcapping": (None,),
    "attn_logit_softcapping": (None,),
    "shift_logits": (False, None),
    "use_qkv_bias": (False, None),
    "use_bias": (False, None),
    "logit_scale": (1, 1.0, None),
    # of the recurrent states
    "mamba_ssm_dtype": ("float32", None),
}


@dataclass(frozen=True)
class HybridConfig:
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
    coreset: CoresetConfig | None  # None: every row chooses among all experts
    block_size: int
    block_anchor: str
    default_threshold: float
    mask_token_id: int | None
    eos_token_ids: tuple[int, ...]
    preview_formulation: str  # one of FORMULATIONS

    @property
    def has_preview_tensors(self) -> bool:
        """Whether previews compute with the four preview tensors of every delta layer."""
        return self.preview_formulation == "C"

    @property
    def may_hold_preview_tensors(self) -> bool:
        """Whether a checkpoint may bring them along even where they are not used."""
        return self.has_preview_tensors or self.model_type == "clover_moe"

    @property
    def conv_channels(self) -> int:
        """Channels of the depthwise convolution: q heads, k heads and v heads side by side."""
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * keys + self.linear_num_value_heads * self.linear_value_head_dim


@dataclass(frozen=True)
class _Family:
    """What differs between the families of the trunk."""

    name: str
    needs_mask_token: bool
    formulation: str  # where the config names none


_CLOVER = _Family("clover_moe", needs_mask_token=True, formulation="C")
_QWEN3_5 = _Family("qwen3_5_moe", needs_mask_token=False, formulation="A")


def parse_clover(keys: Keys, generation: Mapping[str, Any]) -> HybridConfig:
    """The trunk with preview tensors, which formulation C uses, and a mask token."""
    return _build(_CLOVER, keys, generation)


def parse_qwen3_5(keys: Keys, generation: Mapping[str, Any]) -> HybridConfig:
    """The trunk alone; without a mask token it decodes autoregressively only."""
    return _build(_QWEN3_5, keys, generation)


def _build(family: _Family, keys: Keys, generation: Mapping[str, Any]) -> HybridConfig:
    check_maths_keys(keys, _ONLY)
    head_dim = keys.integer("head_dim", default=256)
    rotary_dim, theta = read_rope(keys, head_dim, share=0.25, base=10_000_000.0)
    vocab_size = keys.integer("vocab_size")
    num_experts = keys.integer("num_experts")
    top_k = keys.integer("num_experts_per_tok", high=num_experts)
    anchor = keys.choice("block_anchor", BLOCK_ANCHORS, default="prompt_end")
    return HybridConfig(
        model_type=family.name,
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
        num_experts_per_tok=top_k,
        moe_intermediate_size=keys.integer("moe_intermediate_size"),
        shared_expert_intermediate_size=keys.integer("shared_expert_intermediate_size"),
        coreset=read_coreset(keys, num_experts, top_k, anchor == "zero"),
        block_size=keys.integer("block_size", default=DEFAULT_BLOCK, high=4096),
        block_anchor=anchor,
        default_threshold=read_threshold(keys),
        mask_token_id=read_mask_token(keys, family.needs_mask_token),
        eos_token_ids=read_eos_tokens(keys, generation, vocab_size),
        preview_formulation=keys.choice(
            "preview_formulation", FORMULATIONS, default=family.formulation
        ),
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
