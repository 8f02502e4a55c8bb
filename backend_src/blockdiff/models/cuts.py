"""Which rows or columns of each stored tensor one rank needs, by the tensor's name.

A projection onto heads or inner channels is cut by rows, the one back to the residual stream by
columns, so that its results on all ranks sum up to the whole. What every rank computes for itself
(norms, routers) stays whole. Knows names and configurations; knows nothing of files.
"""

import re
from typing import NamedTuple

from blockdiff.config import AttentionConfig, HybridConfig
from blockdiff.models.share import Share, Span


class Cut(NamedTuple):
    """``rows`` of the first axis laid end to end, ``columns`` of the second; None: all."""

    rows: tuple[Span, ...] | None = None
    columns: Span | None = None


ALL = Cut()
# by name below the layer; experts are not in it, they go by number
Cuts = dict[str, Cut]
_LAYER = re.compile(r"^layers\.\d+\.")
_NORMS = ("norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight")
_ROUTERS = ("mlp.gate.weight", "mlp.gate.expert_bias", "mlp.shared_expert_gate.weight")


def below_layer(name: str) -> str:
    """A tensor's name without its layer's number."""
    return _LAYER.sub("", name)


def make_cuts(share: Share) -> Cuts:
    """What this rank needs of every tensor of its model but the experts."""
    config = share.whole
    vocabulary = Cut(rows=(share.equal(config.vocab_size),))
    cuts = {f"{name}.weight": vocabulary for name in ("embed_tokens", "word_embeddings", "lm_head")}
    cuts |= dict.fromkeys((*_NORMS, *_ROUTERS), ALL)
    if isinstance(config, HybridConfig):
        return cuts | _attention(share, config, query_parts=2) | _delta(share, config)
    assert isinstance(config, AttentionConfig)
    return cuts | _attention(share, config, query_parts=1) | _packed(share, config) | _mlp(share)


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


def _mlp(share: Share) -> Cuts:
    """Dense layers."""
    assert isinstance(share.whole, AttentionConfig)
    inner = share.equal(share.whole.intermediate_size)
    return {
        "mlp.gate_proj.weight": Cut(rows=(inner,)),
        "mlp.up_proj.weight": Cut(rows=(inner,)),
        "mlp.down_proj.weight": Cut(columns=inner),
    }


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
