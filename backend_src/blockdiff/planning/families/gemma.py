"""DiffusionGemma on paper: sliding and full attention, experts beside a dense MLP, no head of its
own, and a signal from step to step for every place of a canvas."""

from blockdiff.config import FULL, SLIDING, DiffusionGemmaConfig
from blockdiff.config.diffusion_gemma import AttentionShape as ConfiguredAttention
from blockdiff.planning.shape import AttentionShape, DenseShape, ExpertShape, ModelShape

# The encoder's tensors are the decoder's, stored once or twice; only its layer scalars are its own.
_COPIES = r"^(model\.)?encoder\.language_model\.(?!layers\.\d+\.layer_scalar$)|^lm_head\."


def describe(config: DiffusionGemmaConfig) -> ModelShape:
    """Sizes and parameters, as the config alone says."""
    layers = config.num_hidden_layers
    sliding = _attention(config, config.sliding, config.layer_types.count(SLIDING))
    full = _attention(config, config.full, config.layer_types.count(FULL))
    experts = ExpertShape(
        layers=layers,
        count=config.num_experts,
        chosen=config.num_experts_per_tok,
        width=config.moe_intermediate_size,
    )
    return ModelShape(
        family=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_context=config.max_position_embeddings,
        block_length=config.block_size,
        parts=_parts(config, experts),
        attention=tuple(kind for kind in (sliding, full) if kind.layers),
        experts=experts,
        dense=DenseShape(layers, config.intermediate_size),
        signal_elements=config.block_size * config.hidden_size,
        has_fixed_block=True,
        copied_names=_COPIES,
    )


def _attention(
    config: DiffusionGemmaConfig, kind: ConfiguredAttention, layers: int
) -> AttentionShape:
    return AttentionShape(
        layers=layers,
        heads=config.num_attention_heads,
        kv_heads=kind.kv_heads,
        head_dim=kind.head_dim,
        kept=None if kind.window is None else kind.window - 1,
        has_value_projection=kind.has_value_projection,
    )


def _parts(config: DiffusionGemmaConfig, experts: ExpertShape) -> dict[str, int]:
    hidden, layers, inner = config.hidden_size, config.num_hidden_layers, config.intermediate_size
    attention, head_norms = 0, 0
    for layer in range(layers):
        kind = config.attention(layer)
        keys = kind.kv_heads * (2 if kind.has_value_projection else 1)
        attention += (2 * config.num_attention_heads + keys) * kind.head_dim * hidden
        head_norms += 2 * kind.head_dim
    return {
        "embedding": config.vocab_size * hidden,
        "experts": layers * experts.count * 3 * experts.width * hidden,
        "dense feed-forward": layers * 3 * inner * hidden,
        "router": layers * (experts.count * hidden + hidden + experts.count),
        "attention": attention,
        "self-conditioning": 3 * inner * hidden + hidden,
        "norms": (7 * layers + 1) * hidden + head_norms,
        # a scalar for each layer of the encoder and of the decoder
        "other": 2 * layers,
    }
