"""Names and shapes of a DiffusionGemma checkpoint's tensors, and their assembly into layers.

The decoder's tensors are the encoder's too; only each layer's scalar is the encoder's own. Names
are without the ``model.`` prefix. Knows nothing of files.
"""

from collections.abc import Container

import torch

from blockdiff.config import DiffusionGemmaConfig
from blockdiff.models.expert_layout import ExpertLayout
from blockdiff.models.group import Group
from blockdiff.models.layers.canvas_attention import CanvasAttentionWeights
from blockdiff.models.layers.linear import DenseLinear, concat_rows
from blockdiff.models.layers.parallel_experts import (
    GELU,
    GeluMlp,
    ParallelFeedForward,
    ScaledRouter,
    SelfConditioning,
    make_scaled_experts,
)
from blockdiff.models.source import ExpertNames, WeightSource
from blockdiff.models.weights import Shapes

_ENCODER = "encoder.language_model."
_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "post_feedforward_layernorm_1",
    "post_feedforward_layernorm_2",
    "pre_feedforward_layernorm_2",
)


def expected_shapes(config: DiffusionGemmaConfig, layout: ExpertLayout) -> Shapes:
    """Every tensor a checkpoint of this config must hold."""
    hidden = config.hidden_size
    found: Shapes = {
        "decoder.embed_tokens.weight": (config.vocab_size, hidden),
        "decoder.norm.weight": (hidden,),
        "decoder.self_conditioning.pre_norm.weight": (hidden,),
    }
    found |= _mlp_shapes("decoder.self_conditioning.", config)
    for layer in range(config.num_hidden_layers):
        own = _layer_shapes(config, layer, layout)
        found |= {f"decoder.layers.{layer}.{name}": shape for name, shape in own.items()}
        found[f"encoder.language_model.layers.{layer}.layer_scalar"] = (1,)
    return found


def is_tied_copy(config: DiffusionGemmaConfig, name: str, needed: Container[str]) -> bool:
    """Whether a stored tensor is the encoder's or the head's copy of one that is ``needed``."""
    if not name.startswith(_ENCODER):
        return name == "lm_head.weight"
    return f"decoder.{name.removeprefix(_ENCODER)}" in needed


def _layer_shapes(config: DiffusionGemmaConfig, layer: int, layout: ExpertLayout) -> Shapes:
    hidden, experts, inner = config.hidden_size, config.num_experts, config.moe_intermediate_size
    shape = config.attention(layer)
    queries = config.num_attention_heads * shape.head_dim
    keys = shape.kv_heads * shape.head_dim
    found: Shapes = {
        "layer_scalar": (1,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (shape.head_dim,),
        "self_attn.k_norm.weight": (shape.head_dim,),
        "router.proj.weight": (experts, hidden),
        "router.scale": (hidden,),
        "router.per_expert_scale": (experts,),
    }
    routed = layout.shapes(experts, inner, hidden)
    found |= {f"experts.{name}": expert_shape for name, expert_shape in routed.items()}
    if shape.has_value_projection:
        found["self_attn.v_proj.weight"] = (keys, hidden)
    found |= {f"{name}.weight": (hidden,) for name in _NORMS}
    return found | _mlp_shapes("mlp.", config)


def _mlp_shapes(own: str, config: DiffusionGemmaConfig) -> Shapes:
    inner, hidden = config.intermediate_size, config.hidden_size
    return {
        f"{own}gate_proj.weight": (inner, hidden),
        f"{own}up_proj.weight": (inner, hidden),
        f"{own}down_proj.weight": (hidden, inner),
    }


def attention_weights(
    source: WeightSource, layer: int, config: DiffusionGemmaConfig
) -> CanvasAttentionWeights:
    """Attention tensors of one layer; without a value projection, keys are values too."""
    own, shape = f"decoder.layers.{layer}.self_attn.", config.attention(layer)
    parts = "qkv" if shape.has_value_projection else "qk"
    query_norm = source.tensor(own + "q_norm.weight").expand(config.num_attention_heads, -1)
    key_norm = source.tensor(own + "k_norm.weight").expand(shape.kv_heads, -1)
    return CanvasAttentionWeights(
        in_proj=concat_rows([source.linear(f"{own}{part}_proj") for part in parts]),
        head_norm=torch.cat((query_norm, key_norm)),
        out_proj=source.linear(own + "o_proj"),
    )


def feed_forward(
    source: WeightSource, layer: int, config: DiffusionGemmaConfig, group: Group
) -> ParallelFeedForward:
    """Dense MLP, router, experts and the norms around them of one layer."""
    own = f"decoder.layers.{layer}."
    eps = config.rms_norm_eps
    names = ExpertNames(
        routed=own + "experts.",
        count=config.num_experts,
        inner=config.moe_intermediate_size,
        activation=GELU,
    )
    weight = source.tensor(own + "router.proj.weight")
    router = ScaledRouter(
        weight=source.numerics.linear(DenseLinear(weight)),
        scale=source.tensor(own + "router.scale"),
        expert_scale=source.tensor(own + "router.per_expert_scale"),
        top_k=config.num_experts_per_tok,
        eps=eps,
    )
    return ParallelFeedForward(
        dense=_mlp(source, own + "mlp."),
        routed=make_scaled_experts(router, source.experts(names), source.numerics),
        before_dense=source.tensor(own + "pre_feedforward_layernorm.weight"),
        after_dense=source.tensor(own + "post_feedforward_layernorm_1.weight"),
        before_experts=source.tensor(own + "pre_feedforward_layernorm_2.weight"),
        after_experts=source.tensor(own + "post_feedforward_layernorm_2.weight"),
        after_sum=source.tensor(own + "post_feedforward_layernorm.weight"),
        eps=eps,
        group=group,
    )


def self_conditioning(
    source: WeightSource, config: DiffusionGemmaConfig, group: Group
) -> SelfConditioning:
    """The decoder's own input layer."""
    own = "decoder.self_conditioning."
    return SelfConditioning(
        source.tensor(own + "pre_norm.weight"), _mlp(source, own), config.rms_norm_eps, group
    )


def _mlp(source: WeightSource, own: str) -> GeluMlp:
    gate_up = concat_rows([source.linear(f"{own}{part}_proj") for part in ("gate", "up")])
    return GeluMlp(gate_up, source.linear(own + "down_proj"), source.numerics.pointwise)
