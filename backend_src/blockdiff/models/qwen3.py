"""Qwen3 and Qwen3-MoE, also where they were adapted to blocks.

Knows the family's tensor names; the maths is the attention trunk's.
"""

import torch

from blockdiff.config import AttentionConfig
from blockdiff.models.attention_trunk import AttentionModel
from blockdiff.models.layers.attention import AttentionWeights
from blockdiff.models.layers.linear import concat_rows
from blockdiff.models.source import WeightSource
from blockdiff.models.weights import Shapes


class Qwen3Model(AttentionModel):
    """Separate q, k and v projections; softmax router without shared expert, or a dense MLP."""

    def attention_weights(self, source: WeightSource, layer: int) -> AttentionWeights:
        """The attention tensors of ``layer``."""
        own, config = f"layers.{layer}.self_attn.", self.config
        query_norm = source.tensor(own + "q_norm.weight").expand(config.num_attention_heads, -1)
        key_norm = source.tensor(own + "k_norm.weight").expand(config.num_key_value_heads, -1)
        return AttentionWeights(
            in_proj=concat_rows([source.linear(f"{own}{x}_proj") for x in "qkv"]),
            head_norm=torch.cat((query_norm, key_norm)),
            out_proj=source.linear(own + "o_proj"),
        )

    @classmethod
    def attention_shapes(cls, config: AttentionConfig) -> Shapes:
        """The attention tensors of one layer, by name below the layer."""
        hidden, dim = config.hidden_size, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        return {
            "self_attn.q_proj.weight": (heads * dim, hidden),
            "self_attn.k_proj.weight": (kv_heads * dim, hidden),
            "self_attn.v_proj.weight": (kv_heads * dim, hidden),
            "self_attn.o_proj.weight": (hidden, heads * dim),
            "self_attn.q_norm.weight": (dim,),
            "self_attn.k_norm.weight": (dim,),
        }
