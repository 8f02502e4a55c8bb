"""Names and shapes of a hybrid checkpoint's tensors, and their assembly into layer weights.

Names are without the ``model.`` / ``model.language_model.`` prefix. Knows nothing of files.
"""

from collections.abc import Container

import torch

from blockdiff.config import LINEAR, HybridConfig
from blockdiff.models.expert_layout import ExpertLayout
from blockdiff.models.layers.attention import AttentionWeights
from blockdiff.models.layers.gated_delta import GatedDeltaWeights, PreviewWeights
from blockdiff.models.layers.linear import DenseLinear, concat_rows
from blockdiff.models.layers.sparse_moe import MoeWeights
from blockdiff.models.source import ExpertNames, WeightSource

Shapes = dict[str, tuple[int, ...]]

# small vectors that lose accuracy in bfloat16 and cost nothing in float32
FLOAT32_SUFFIXES = (
    "linear_attn.A_log",
    "linear_attn.dt_bias",
    "linear_attn.norm.weight",
    "linear_attn.bd_softmax_logit_scale",
    "linear_attn.bd_softmax_history_bias",
    "linear_attn.bd_softmax_history_c",
)


_PREVIEW_SUFFIXES = (
    "linear_attn.conv_right_weight",
    "linear_attn.bd_softmax_logit_scale",
    "linear_attn.bd_softmax_history_bias",
    "linear_attn.bd_softmax_history_c",
)


def is_spare(config: HybridConfig, name: str, needed: Container[str]) -> bool:
    """Whether a stored tensor belongs to a formulation that this config does not use."""
    has_spare = config.may_hold_preview_tensors and not config.has_preview_tensors
    return has_spare and name.endswith(_PREVIEW_SUFFIXES)


def expected_shapes(config: HybridConfig, layout: ExpertLayout) -> Shapes:
    """Every tensor a checkpoint of this config must hold."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: Shapes = {"embed_tokens.weight": (vocab, hidden), "norm.weight": (hidden,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (vocab, hidden)
    for layer, kind in enumerate(config.layer_types):
        own = _delta_shapes(config) if kind == LINEAR else _attention_shapes(config)
        own |= _moe_shapes(config, layout)
        own |= {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in own.items()}
    return shapes


def _delta_shapes(config: HybridConfig) -> Shapes:
    hidden, channels = config.hidden_size, config.conv_channels
    heads, kernel = config.linear_num_value_heads, config.linear_conv_kernel_dim
    inner = heads * config.linear_value_head_dim
    shapes: Shapes = {
        "in_proj_qkv.weight": (channels, hidden),
        "in_proj_z.weight": (inner, hidden),
        "in_proj_b.weight": (heads, hidden),
        "in_proj_a.weight": (heads, hidden),
        "conv1d.weight": (channels, 1, kernel),
        "A_log": (heads,),
        "dt_bias": (heads,),
        "norm.weight": (config.linear_value_head_dim,),
        "out_proj.weight": (hidden, inner),
    }
    if config.has_preview_tensors:
        shapes["conv_right_weight"] = (channels, kernel - 1)
        for name in ("logit_scale", "history_bias", "history_c"):
            shapes[f"bd_softmax_{name}"] = (heads,)
    return {f"linear_attn.{name}": shape for name, shape in shapes.items()}


def _attention_shapes(config: HybridConfig) -> Shapes:
    hidden, dim = config.hidden_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return {
        "self_attn.q_proj.weight": (2 * heads * dim, hidden),
        "self_attn.k_proj.weight": (kv_heads * dim, hidden),
        "self_attn.v_proj.weight": (kv_heads * dim, hidden),
        "self_attn.o_proj.weight": (hidden, heads * dim),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
    }


def _moe_shapes(config: HybridConfig, layout: ExpertLayout) -> Shapes:
    hidden, experts = config.hidden_size, config.num_experts
    inner, shared = config.moe_intermediate_size, config.shared_expert_intermediate_size
    shapes: Shapes = {
        "mlp.gate.weight": (experts, hidden),
        "mlp.shared_expert_gate.weight": (1, hidden),
        "mlp.shared_expert.gate_proj.weight": (shared, hidden),
        "mlp.shared_expert.up_proj.weight": (shared, hidden),
        "mlp.shared_expert.down_proj.weight": (hidden, shared),
    }
    return shapes | expert_shapes(layout, experts, inner, hidden)


def delta_weights(source: WeightSource, layer: int, config: HybridConfig) -> GatedDeltaWeights:
    """Gated DeltaNet tensors of one layer; named as in ``expected_shapes``."""
    own = f"layers.{layer}.linear_attn."
    return GatedDeltaWeights(
        in_proj=concat_rows([source.linear(f"{own}in_proj_{x}") for x in ("qkv", "z", "b", "a")]),
        conv=source.tensor(own + "conv1d.weight").squeeze(1),
        a_log=source.tensor(own + "A_log"),
        dt_bias=source.tensor(own + "dt_bias"),
        norm=source.tensor(own + "norm.weight"),
        out_proj=source.linear(own + "out_proj"),
        preview=_preview_weights(source, own) if config.has_preview_tensors else None,
    )


def _preview_weights(source: WeightSource, own: str) -> PreviewWeights:
    return PreviewWeights(
        conv_right=source.tensor(own + "conv_right_weight"),
        logit_scale=source.tensor(own + "bd_softmax_logit_scale"),
        history_bias=source.tensor(own + "bd_softmax_history_bias"),
        history_c=source.tensor(own + "bd_softmax_history_c"),
    )


def attention_weights(source: WeightSource, layer: int, config: HybridConfig) -> AttentionWeights:
    """Full-attention tensors of one layer; stored q_proj rows are, per head, q and then gate."""
    own, dim, heads = f"layers.{layer}.self_attn.", config.head_dim, config.num_attention_heads
    q_rows = [(2 * head * dim, (2 * head + 1) * dim) for head in range(heads)]
    gate_rows = [(stop, stop + dim) for _, stop in q_rows]
    q_and_gate = source.linear(own + "q_proj")
    query_norm = source.tensor(own + "q_norm.weight").expand(heads, -1)
    key_norm = source.tensor(own + "k_norm.weight").expand(config.num_key_value_heads, -1)
    parts = (
        q_and_gate.rows(q_rows),
        source.linear(own + "k_proj"),
        source.linear(own + "v_proj"),
        q_and_gate.rows(gate_rows),
    )
    return AttentionWeights(
        in_proj=concat_rows(parts),
        head_norm=torch.cat((query_norm, key_norm)),
        out_proj=source.linear(own + "o_proj"),
    )


def moe_weights(source: WeightSource, layer: int, config: HybridConfig) -> MoeWeights:
    """Router, experts and shared expert of one layer."""
    own = f"layers.{layer}.mlp."
    rows = [source.tensor(own + name) for name in ("gate.weight", "shared_expert_gate.weight")]
    names = ExpertNames(
        routed=own + "experts.",
        count=config.num_experts,
        inner=config.moe_intermediate_size,
        shared=own + "shared_expert.",
    )
    router = source.numerics.linear(DenseLinear(torch.cat(rows)))
    return MoeWeights(router, source.experts(names))


def expert_shapes(layout: ExpertLayout, num_experts: int, inner: int, hidden: int) -> Shapes:
    """Routed experts of one layer."""
    shapes = layout.shapes(num_experts, inner, hidden)
    return {f"mlp.experts.{name}": shape for name, shape in shapes.items()}
