"""Configuration of attention-only models: what their families share.

Each family's keys are in a file of their own; knows nothing of tensors or of the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockdiff.config.keys import Keys
from blockdiff.config.parts import (
    BLOCK_ANCHORS,
    FULL,
    read_eos_tokens,
    read_mask_token,
    read_rope,
    read_threshold,
)

# what a committed row sees besides what was committed before: rows up to itself, or up to the end
# of its block in a grid of blocks from position 0
CAUSAL = "causal"
BLOCK_CAUSAL = "block_causal"

# keys with only one supported value; any other would be computed wrongly in silence
ATTENTION_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish", None),
    "use_sliding_window": (False, None),
    "final_logit_softcapping": (None,),
    "attn_logit_softcapping": (None,),
    "shift_logits": (False, None),
    "logit_scale": (1, 1.0, None),
    "attention_bias": (False, None),
    "block_anchor": ("zero", None),
    "expert_coreset": (0, False, None),
}
SOFTMAX_ONLY: dict[str, tuple[Any, ...]] = {
    "expert_capacity": (0, None),
    "num_shared_experts": (0, None),
    "use_qk_norm": (True, None),
    "scoring_func": ("softmax", None),
    "score_function": ("softmax", None),
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
    is_normalised: bool = True  # weights of the chosen experts sum to 1; else their share of all


@dataclass(frozen=True)
class AttentionConfig:
    """Everything an attention-only model needs to know about itself."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    dense_layers: tuple[int, ...]  # numbers of those with a dense MLP; the others have experts
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
    commits: str  # CAUSAL or BLOCK_CAUSAL
    block_size: int
    block_anchor: str
    default_threshold: float
    mask_token_id: int | None  # None: the checkpoint cannot decode blocks
    eos_token_ids: tuple[int, ...]
    # LLaDA2.2's delete and split tokens; None: editing keeps every token's place
    length_tokens: tuple[int, int] | None = None

    @property
    def layer_types(self) -> tuple[str, ...]:
        """As in the hybrid trunk's config: every layer is full attention."""
        return (FULL,) * self.num_hidden_layers

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that are not dense."""
        return tuple(n for n in range(self.num_hidden_layers) if n not in self.dense_layers)


@dataclass(frozen=True)
class Family:
    """How a family commits, and what it uses for keys that its configs may leave out."""

    name: str
    commits: str
    block_size: int
    threshold: float
    rope_base: float
    rotary_share: float = 1.0
    head_dim: int | None = 128  # None: hidden_size / num_attention_heads


def all_layers(keys: Keys) -> tuple[int, ...]:
    """Their numbers."""
    return tuple(range(keys.integer("num_hidden_layers")))


def build_config(
    family: Family,
    keys: Keys,
    generation: Mapping[str, Any],
    router: RouterConfig | None,
    dense: tuple[int, ...],
) -> AttentionConfig:
    """Read the keys that all attention-only families share; ``dense`` numbers layers."""
    _check_layer_types(keys)
    is_causal = family.commits == CAUSAL
    vocab_size = keys.integer("vocab_size")
    head_dim = _head_dim(keys, family)
    rotary_dim, theta = read_rope(keys, head_dim, family.rotary_share, family.rope_base)
    return AttentionConfig(
        model_type=family.name,
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
        commits=family.commits,
        block_size=keys.integer("block_size", default=family.block_size, high=4096),
        block_anchor=keys.choice(
            "block_anchor", BLOCK_ANCHORS, default="prompt_end" if is_causal else "zero"
        ),
        default_threshold=read_threshold(keys, family.threshold),
        mask_token_id=read_mask_token(keys, is_required=not is_causal),
        eos_token_ids=read_eos_tokens(keys, generation, vocab_size),
    )


def _head_dim(keys: Keys, family: Family) -> int:
    if keys.get("head_dim") is not None or family.head_dim is not None:
        return keys.integer("head_dim", default=family.head_dim)
    heads = keys.integer("num_attention_heads")
    return keys.multiple("hidden_size", "num_attention_heads") // heads


def _check_layer_types(keys: Keys) -> None:
    count, types = keys.integer("num_hidden_layers"), keys.get("layer_types")
    if types is not None and types != [FULL] * count:
        raise keys.error("layer_types", f"absent or a list of {count} entries {FULL!r}")
