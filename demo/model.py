"""The demo model in training form: whole sequences, both losses, gradients.

Same parameters and names as a `clover_moe` checkpoint, same formulas as the engine (a test compares
the logits of both). Knows nothing of caches, slots or serving; `demo/streams.py` has the layout of
a batch.
"""

import torch
from torch import Tensor, nn

from demo.experts import SparseMoe
from demo.mixers import GatedAttention, GatedDeltaNet, ZeroCentredNorm
from demo.streams import DemoConfig, Streams


class DecoderLayer(nn.Module):
    def __init__(self, config: DemoConfig, layer: int) -> None:
        super().__init__()
        self.is_attention = config.layer_type(layer) == "full_attention"
        if self.is_attention:
            self.self_attn = GatedAttention(config)
        else:
            self.linear_attn = GatedDeltaNet(config)
        self.mlp = SparseMoe(config)
        self.input_layernorm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, s: Streams) -> tuple[Tensor, Tensor]:
        mixer = self.self_attn if self.is_attention else self.linear_attn
        x = x + mixer(self.input_layernorm(x), s)
        y, balance = self.mlp(self.post_attention_layernorm(x), s.real)
        return x + y, balance


class Trunk(nn.Module):
    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = [DecoderLayer(config, i) for i in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)


class DemoModel(nn.Module):
    """`clover_moe` for training; parameter names are those of the checkpoint."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2 and "conv" not in name:
                nn.init.normal_(p, std=0.05)
        nn.init.normal_(self.model.embed_tokens.weight, std=0.5)

    def forward(self, clean: Tensor, noisy: Tensor, s: Streams) -> tuple[Tensor, Tensor]:
        """clean ids [N, T], noisy ids [N, M, BLOCK] -> final hidden [N, T + M * BLOCK, H]."""
        x = self.model.embed_tokens(torch.cat([clean, noisy.flatten(1)], 1))
        balance = x.new_zeros(())
        for layer in self.model.layers:
            x, b = layer(x, s)
            balance = balance + b
        return self.model.norm(x), balance / len(self.model.layers)
