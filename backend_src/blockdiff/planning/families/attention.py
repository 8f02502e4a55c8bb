"""The attention-only families on paper: LLaDA2, SDAR and Qwen3, dense or with experts."""

from blockdiff.config import AttentionConfig, RouterConfig
from blockdiff.planning.shape import AttentionShape, DenseShape, ExpertShape, ModelShape


def describe(config: AttentionConfig) -> ModelShape:
    """Sizes and parameters, as the config alone says."""
    attention = AttentionShape(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
    )
    sparse = config.num_hidden_layers - len(config.dense_layers)
    experts = _experts(config.router, sparse)
    dense = DenseShape(len(config.dense_layers), config.intermediate_size)
    parts = _parts(config, attention, dense) | _sparse_parts(config, sparse)
    return ModelShape(
        family=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_context=config.max_position_embeddings,
        block_length=config.block_size,
        parts={name: count for name, count in parts.items() if count},
        attention=(attention,),
        experts=experts,
        dense=dense if dense.layers else None,
        unused_parts=("output head",) if config.tie_word_embeddings else (),
        # sigmoid routers compute in float32 in every model dtype
        float32_parts=frozenset({"router"} if config.router and config.router.is_sigmoid else ()),
    )


def _experts(router: RouterConfig | None, layers: int) -> ExpertShape | None:
    if router is None or not layers:
        return None
    return ExpertShape(
        layers=layers,
        count=router.num_experts,
        chosen=router.num_experts_per_tok,
        width=router.moe_intermediate_size,
        shared_width=router.shared_intermediate_size,
    )


def _parts(config: AttentionConfig, attention: AttentionShape, dense: DenseShape) -> dict[str, int]:
    hidden, layers = config.hidden_size, config.num_hidden_layers
    projections = 2 * attention.query_width + 2 * attention.key_width
    vocabulary = config.vocab_size * hidden
    return {
        "embedding": vocabulary,
        "output head": 0 if config.tie_word_embeddings else vocabulary,
        "attention": layers * projections * hidden,
        "dense feed-forward": dense.layers * 3 * dense.width * hidden,
        "norms": (2 * layers + 1) * hidden + 2 * layers * attention.head_dim,
    }


def _sparse_parts(config: AttentionConfig, layers: int) -> dict[str, int]:
    router, hidden = config.router, config.hidden_size
    if router is None:
        return {}
    bias = router.num_experts if router.has_bias else 0
    return {
        "experts": layers * router.num_experts * 3 * router.moe_intermediate_size * hidden,
        "shared expert": layers * 3 * router.shared_intermediate_size * hidden,
        "router": layers * (router.num_experts * hidden + bias),
    }
