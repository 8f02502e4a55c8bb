"""The hybrid trunk on paper: Gated DeltaNet and gated attention, each followed by experts."""

from blockdiff.config import FULL, LINEAR, HybridConfig
from blockdiff.planning.shape import AttentionShape, DeltaShape, ExpertShape, ModelShape


def describe(config: HybridConfig) -> ModelShape:
    """Sizes and parameters, as the config alone says."""
    delta = DeltaShape(
        layers=config.layer_types.count(LINEAR),
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        kernel=config.linear_conv_kernel_dim,
    )
    attention = AttentionShape(
        layers=config.layer_types.count(FULL),
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        has_gate=True,
    )
    experts = ExpertShape(
        layers=len(config.layer_types),
        count=config.num_experts,
        chosen=config.num_experts_per_tok,
        width=config.moe_intermediate_size,
        shared_width=config.shared_expert_intermediate_size,
    )
    parts = _parts(config, attention, delta, experts)
    return ModelShape(
        family=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_context=config.max_position_embeddings,
        block_length=config.block_size,
        parts={name: count for name, count in parts.items() if count},
        attention=(attention,),
        delta=delta,
        experts=experts,
        unused_parts=_unused(config),
    )


def _unused(config: HybridConfig) -> tuple[str, ...]:
    unused = ["output head"] if config.tie_word_embeddings else []
    return (*unused, *(() if config.has_preview_tensors else ("preview operator",)))


def _parts(
    config: HybridConfig, attention: AttentionShape, delta: DeltaShape, experts: ExpertShape
) -> dict[str, int]:
    hidden, layers, heads = config.hidden_size, len(config.layer_types), delta.value_heads
    inner = heads * delta.value_dim
    projections = (delta.channels + 2 * inner + 2 * heads) * hidden
    norms = (2 * layers + 1) * hidden + 2 * attention.layers * attention.head_dim
    parts = {
        "embedding": config.vocab_size * hidden,
        "experts": layers * experts.count * 3 * experts.width * hidden,
        "shared expert": layers * 3 * experts.shared_width * hidden,
        "router": layers * (experts.count + 1) * hidden,
        "attention": attention.layers
        * (3 * attention.query_width + 2 * attention.key_width)
        * hidden,
        "gated delta": delta.layers * (projections + delta.channels * delta.kernel + 2 * heads),
        "norms": norms + delta.layers * delta.value_dim,
    }
    if not config.tie_word_embeddings:
        parts["output head"] = config.vocab_size * hidden
    if config.has_preview_tensors:
        extra = delta.channels * (delta.kernel - 1) + 3 * heads
        parts["preview operator"] = delta.layers * extra
    return parts
