"""Which rows or columns of each stored tensor one rank needs, by the tensor's name.

A projection onto heads or inner channels is cut by rows, the one back to the residual stream by
columns, so that its results on all ranks sum up to the whole. What every rank computes for itself
(norms, routers) stays whole. Knows names and configurations; knows nothing of files.
"""

import re
from typing import NamedTuple

from blockdiff.config import AttentionConfig, DiffusionGemmaConfig, HybridConfig
from blockdiff.models.share import Share, Span


class Cut(NamedTuple):
    """``rows`` of the first axis laid end to end, ``columns`` of the second; None: all."""

    rows: tuple[Span, ...] | None = None
    columns: Span | None = None


ALL = Cut()
# by name below the layer, or by full name where layers differ; experts go by number
Cuts = dict[str, Cut]
_LAYER = re.compile(r"^(decoder\.)?layers\.\d+\.")
_NORMS = ("norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight")
_GEMMA_NORMS = (
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "post_feedforward_layernorm_1",
    "post_feedforward_layernorm_2",
    "pre_feedforward_layernorm_2",
)
_ROUTERS = ("mlp.gate.weight", "mlp.gate.expert_bias", "mlp.shared_expert_gate.weight")


def find_cut(cuts: Cuts, name: str) -> Cut | None:
    """The cut of a tensor by its full name; None: there is no rule for it."""
    return cuts.get(name, cuts.get(_LAYER.sub("", name)))


def make_cuts(share: Share) -> Cuts:
    """What this rank needs of every tensor of its model but the experts."""
    config = share.whole
    vocabulary = Cut(rows=(share.equal(config.vocab_size),))
    cuts = {f"{name}.weight": vocabulary for name in ("embed_tokens", "word_embeddings", "lm_head")}
    cuts |= dict.fromkeys((*_NORMS, *_ROUTERS), ALL)
    if isinstance(config, DiffusionGemmaConfig):
        return cuts | _canvas(share, config) | _mlp("mlp.", share, config.intermediate_size)
    if isinstance(config, HybridConfig):
        return cuts | _attention(share, config, query_parts=2) | _delta(share, config)
    cuts |= _mlp("mlp.", share, config.intermediate_size)
    return cuts | _attention(share, config, query_parts=1) | _packed(share, config)


def _attention(share: Share, config: HybridConfig | AttentionConfig, query_parts: int) -> Cuts:
    """Separate projections; ``query_parts`` 2: every head's query rows are followed by a gate's."""
    dim = config.head_dim
    keys = Cut(rows=(share.heads(config.num_key_value_heads, dim),))
    return {
        "self_attn.q_proj.weight": Cut(
            rows=(share.equal(config.num_attention_heads, query_parts * dim),)
        ),
        "self_attn.k_proj.weight": keys,
        "self_attn.v_proj.weight": keys,
        "self_attn.o_proj.weight": Cut(columns=share.equal(config.num_attention_heads, dim)),
        "self_attn.q_norm.weight": ALL,
        "self_attn.k_norm.weight": ALL,
    }


def _packed(share: Share, config: AttentionConfig) -> Cuts:
    """LLaDA2's attention: q, k and v heads in one projection."""
    dim, kv_heads = config.head_dim, config.num_key_value_heads
    queries, keys = share.equal(config.num_attention_heads, dim), share.heads(kv_heads, dim)
    key_start = config.num_attention_heads * dim
    value_start = key_start + kv_heads * dim
    return {
        "attention.query_key_value.weight": Cut(
            rows=(queries, _moved(keys, key_start), _moved(keys, value_start))
        ),
        "attention.dense.weight": Cut(columns=queries),
        "attention.query_layernorm.weight": ALL,
        "attention.key_layernorm.weight": ALL,
    }


def _mlp(own: str, share: Share, width: int) -> Cuts:
    """A dense MLP of so many inner channels."""
    inner = share.equal(width)
    return {
        f"{own}gate_proj.weight": Cut(rows=(inner,)),
        f"{own}up_proj.weight": Cut(rows=(inner,)),
        f"{own}down_proj.weight": Cut(columns=inner),
    }


def _canvas(share: Share, config: DiffusionGemmaConfig) -> Cuts:
    """DiffusionGemma: layers of two shapes, and what only it has."""
    cuts = dict.fromkeys((f"{name}.weight" for name in _GEMMA_NORMS), ALL)
    cuts |= dict.fromkeys(("layer_scalar", "decoder.norm.weight"), ALL)
    cuts |= dict.fromkeys(("router.proj.weight", "router.scale", "router.per_expert_scale"), ALL)
    cuts["decoder.embed_tokens.weight"] = Cut(rows=(share.equal(config.vocab_size),))
    own = "decoder.self_conditioning."
    cuts[own + "pre_norm.weight"] = ALL
    cuts |= _mlp(own, share, config.intermediate_size)
    for layer in range(config.num_hidden_layers):
        shape = config.attention(layer)
        keys = Cut(rows=(share.heads(shape.kv_heads, shape.head_dim),))
        queries = share.equal(config.num_attention_heads, shape.head_dim)
        own = f"decoder.layers.{layer}.self_attn."
        cuts |= {f"{own}{name}_proj.weight": keys for name in "kv"}
        cuts |= {f"{own}q_proj.weight": Cut(rows=(queries,))}
        cuts |= {f"{own}o_proj.weight": Cut(columns=queries)}
        cuts |= {f"{own}{name}_norm.weight": ALL for name in "qk"}
        cuts[f"encoder.language_model.layers.{layer}.layer_scalar"] = ALL
    return cuts


def _delta(share: Share, config: HybridConfig) -> Cuts:
    """Gated DeltaNet: value heads with the key heads that belong to them."""
    key_size = config.linear_num_key_heads * config.linear_key_head_dim
    keys = share.heads(config.linear_num_key_heads, config.linear_key_head_dim)
    values = share.equal(config.linear_num_value_heads, config.linear_value_head_dim)
    channels = Cut(rows=(keys, _moved(keys, key_size), _moved(values, 2 * key_size)))
    heads = Cut(rows=(share.equal(config.linear_num_value_heads),))
    cuts = dict.fromkeys(("in_proj_qkv.weight", "conv1d.weight", "conv_right_weight"), channels)
    cuts |= dict.fromkeys(("in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias"), heads)
    names = ("logit_scale", "history_bias", "history_c")
    cuts |= {f"bd_softmax_{name}": heads for name in names}
    cuts["in_proj_z.weight"] = Cut(rows=(values,))
    cuts["out_proj.weight"] = Cut(columns=values)
    cuts["norm.weight"] = ALL
    return {f"linear_attn.{name}": cut for name, cut in cuts.items()}


def _moved(span: Span, by: int) -> Span:
    return span[0] + by, span[1] + by
