"""LLaDA2: packed projections, a sigmoid router in groups or by blocks, dense first layers.

Knows the family's tensor names; the maths is the attention trunk's.
"""

import torch

from blockdiff.config import AttentionConfig
from blockdiff.models.attention_trunk import AttentionModel
from blockdiff.models.layers.attention import AttentionWeights
from blockdiff.models.source import WeightSource
from blockdiff.models.weights import Shapes

# the router computes in float32 in every model dtype
LLADA2_FLOAT32_SUFFIXES = ("mlp.gate.weight", "mlp.gate.expert_bias")


class Llada2MoeModel(AttentionModel):
    """One packed q | k | v projection; the shared expert is added without a gate."""

    supports_editing = True
    embedding_name = "word_embeddings.weight"

    def attention_weights(self, source: WeightSource, layer: int) -> AttentionWeights:
        """The attention tensors of ``layer``."""
        own, config = f"layers.{layer}.attention.", self.config
        query_norm = source.tensor(own + "query_layernorm.weight").expand(
            config.num_attention_heads, -1
        )
        key_norm = source.tensor(own + "key_layernorm.weight").expand(
            config.num_key_value_heads, -1
        )
        return AttentionWeights(
            in_proj=source.linear(own + "query_key_value"),
            head_norm=torch.cat((query_norm, key_norm)),
            out_proj=source.linear(own + "dense"),
        )

    @classmethod
    def attention_shapes(cls, config: AttentionConfig) -> Shapes:
        """The attention tensors of one layer, by name below the layer."""
        hidden, dim = config.hidden_size, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        return {
            "attention.query_key_value.weight": ((heads + 2 * kv_heads) * dim, hidden),
            "attention.dense.weight": (hidden, heads * dim),
            "attention.query_layernorm.weight": (dim,),
            "attention.key_layernorm.weight": (dim,),
        }
