"""Names and shapes of a DiffusionGemma checkpoint's tensors, and their assembly into layers.

The decoder's tensors are the encoder's too; only each layer's scalar is the encoder's own. Names
are without the ``model.`` prefix. Knows nothing of files.
"""

import torch

from blockdiff.config import DiffusionGemmaConfig
from blockdiff.models.layers.canvas_attention import CanvasAttentionWeights
from blockdiff.models.layers.parallel_experts import (
    GeluMlp,
    ParallelFeedForward,
    ScaledRouter,
    SelfConditioning,
)
from blockdiff.models.weights import Fetch, Shapes

_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "post_feedforward_layernorm_1",
    "post_feedforward_layernorm_2",
    "pre_feedforward_layernorm_2",
)


def expected_shapes(config: DiffusionGemmaConfig, has_fused_experts: bool) -> Shapes:
    """Every tensor a checkpoint of this config must hold; experts are always stored fused."""
    hidden = config.hidden_size
    found: Shapes = {
        "decoder.embed_tokens.weight": (config.vocab_size, hidden),
        "decoder.norm.weight": (hidden,),
        "decoder.self_conditioning.pre_norm.weight": (hidden,),
    }
    found |= _mlp_shapes("decoder.self_conditioning.", config)
    for layer in range(config.num_hidden_layers):
        own = _layer_shapes(config, layer)
        found |= {f"decoder.layers.{layer}.{name}": shape for name, shape in own.items()}
        found[f"encoder.language_model.layers.{layer}.layer_scalar"] = (1,)
    return found


def tied_copies(config: DiffusionGemmaConfig) -> tuple[str, ...]:
    """Names a checkpoint may hold besides: the encoder's and the head's copies of the decoder's."""
    shared = (
        name.removeprefix("decoder.")
        for name in expected_shapes(config, True)
        if name.startswith("decoder.") and not name.startswith("decoder.self_conditioning.")
    )
    copies = [f"encoder.language_model.{x}" for x in shared if not x.endswith(".layer_scalar")]
    return (*copies, "lm_head.weight")


def _layer_shapes(config: DiffusionGemmaConfig, layer: int) -> Shapes:
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
        "experts.gate_up_proj": (experts, 2 * inner, hidden),
        "experts.down_proj": (experts, hidden, inner),
    }
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
    fetch: Fetch, layer: int, config: DiffusionGemmaConfig
) -> CanvasAttentionWeights:
    """Attention tensors of one layer; without a value projection, keys are values too."""
    own, shape = f"decoder.layers.{layer}.self_attn.", config.attention(layer)
    parts = "qkv" if shape.has_value_projection else "qk"
    query_norm = fetch(own + "q_norm.weight").expand(config.num_attention_heads, -1)
    key_norm = fetch(own + "k_norm.weight").expand(shape.kv_heads, -1)
    return CanvasAttentionWeights(
        in_proj=torch.cat([fetch(f"{own}{part}_proj.weight") for part in parts]),
        head_norm=torch.cat((query_norm, key_norm)),
        out_proj=fetch(own + "o_proj.weight"),
    )


def feed_forward(fetch: Fetch, layer: int, config: DiffusionGemmaConfig) -> ParallelFeedForward:
    """Dense MLP, router, experts and the norms around them of one layer."""
    own = f"decoder.layers.{layer}."
    eps = config.rms_norm_eps
    return ParallelFeedForward(
        dense=_mlp(fetch, own + "mlp."),
        router=ScaledRouter(
            weight=fetch(own + "router.proj.weight"),
            scale=fetch(own + "router.scale"),
            expert_scale=fetch(own + "router.per_expert_scale"),
            top_k=config.num_experts_per_tok,
            eps=eps,
        ),
        gate_up=fetch(own + "experts.gate_up_proj"),
        down=fetch(own + "experts.down_proj").transpose(1, 2).contiguous(),
        before_dense=fetch(own + "pre_feedforward_layernorm.weight"),
        after_dense=fetch(own + "post_feedforward_layernorm_1.weight"),
        before_experts=fetch(own + "pre_feedforward_layernorm_2.weight"),
        after_experts=fetch(own + "post_feedforward_layernorm_2.weight"),
        after_sum=fetch(own + "post_feedforward_layernorm.weight"),
        eps=eps,
    )


def self_conditioning(fetch: Fetch, config: DiffusionGemmaConfig) -> SelfConditioning:
    """The decoder's own input layer."""
    own = "decoder.self_conditioning."
    return SelfConditioning(fetch(own + "pre_norm.weight"), _mlp(fetch, own), config.rms_norm_eps)


def _mlp(fetch: Fetch, own: str) -> GeluMlp:
    gate, up, down = (fetch(f"{own}{part}_proj.weight") for part in ("gate", "up", "down"))
    return GeluMlp(torch.cat((gate, up)), down)
