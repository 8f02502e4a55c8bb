"""The model whose kernels are checked: the largest hybrid one, or a tiny twin for interpreters."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """Of one model and of the rounds that it gets."""

    hidden: int = 2048
    layers: int = 40
    attention_every: int = 4  # layers
    heads: int = 16
    kv_heads: int = 2
    head_dim: int = 256
    rotary_dim: int = 64
    key_heads: int = 16
    value_heads: int = 32
    delta_dim: int = 128  # of keys and of values
    taps: int = 4
    experts: int = 256
    chosen: int = 8
    inner: int = 512
    vocabulary: int = 248320
    block: int = 32
    context: int = 2048
    rows: tuple[int, ...] = (32, 128, 512, 1024, 2048)

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values side by side."""
        return (2 * self.key_heads + self.value_heads) * self.delta_dim

    @property
    def delta_inner(self) -> int:
        return self.value_heads * self.delta_dim

    def config(self, layers: int | None = None) -> dict[str, Any]:
        """The keys of its ``config.json``."""
        return {
            "model_type": "clover_moe",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers if layers is None else layers,
            "full_attention_interval": self.attention_every,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "linear_key_head_dim": self.delta_dim,
            "linear_value_head_dim": self.delta_dim,
            "linear_conv_kernel_dim": self.taps,
            "num_experts": self.experts,
            "num_experts_per_tok": self.chosen,
            "moe_intermediate_size": self.inner,
            "shared_expert_intermediate_size": self.inner,
            "num_shared_experts": 1,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "max_position_embeddings": 131072,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e7,
                "partial_rotary_factor": self.rotary_dim / self.head_dim,
            },
            "block_size": self.block,
            "mask_token_id": self.vocabulary - 1,
            "eos_token_id": [self.vocabulary - 2],
        }


FULL = Sizes()
TINY = Sizes(
    hidden=64,
    layers=2,
    attention_every=2,
    heads=4,
    kv_heads=2,
    head_dim=32,
    rotary_dim=8,
    key_heads=2,
    value_heads=4,
    delta_dim=16,
    experts=4,
    chosen=2,
    inner=32,
    vocabulary=300,
    block=16,
    context=32,
    rows=(16,),
)
