"""Layout of a packed training batch: sizes, who sees whom, positions.

Samples are packed chunk by chunk (`BLOCK` tokens a chunk) into sequences. A prompt is padded on the
left so that it ends on a chunk boundary; the answer's chunks follow. The clean stream [N, T] is
causal. Beside it stand noisy copies of some answer chunks [N, M, BLOCK]; each sees the clean stream
of its own sample before its chunk (keys, values, carried state, convolution tail) and itself in
both directions. Knows no layers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 16


@dataclass(frozen=True)
class DemoConfig:
    """Sizes under the names of the checkpoint's config.json."""

    vocab_size: int
    hidden_size: int = 128
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    linear_conv_kernel_dim: int = 4
    num_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 64
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    partial_rotary_factor: float = 0.25

    def layer_type(self, layer: int) -> str:
        return "full_attention" if layer % 4 == 3 else "linear_attention"


@dataclass
class Streams:
    """What every layer needs besides the rows; built once per batch."""

    real: Tensor  # [N, T + M * BLOCK] 1.0 where a row holds a token, 0.0 on padding
    sample: Tensor  # [N, T] which sample a clean row belongs to
    chunk: Tensor  # [N, M] index of the clean chunk that each noisy block replaces
    carries: Tensor  # [N, C] 1.0 where a chunk continues the sample of the chunk before it
    mask: Tensor  # [N, 1, T + M * BLOCK, same] who may attend to whom
    cos: Tensor  # [N, 1, T + M * BLOCK, rotary / 2]
    sin: Tensor

    @property
    def clean_length(self) -> int:
        return self.sample.shape[1]


def build_streams(real: Tensor, sample: Tensor, chunk: Tensor, config: DemoConfig) -> Streams:
    """real [N, T], sample [N, C] (sample of each chunk), chunk [N, M]."""
    n, length = real.shape
    device = real.device
    clean = torch.arange(length, device=device).expand(n, length)
    offsets = torch.arange(BLOCK, device=device)
    noisy = (chunk[:, :, None] * BLOCK + offsets).flatten(1)
    positions = torch.cat([clean, noisy], 1)
    sample_of_row = sample.repeat_interleave(BLOCK, 1)
    sample_of_noisy = sample.gather(1, chunk).repeat_interleave(BLOCK, 1)
    block_start = chunk.repeat_interleave(BLOCK, 1) * BLOCK
    copy = torch.arange(chunk.shape[1], device=device).repeat_interleave(BLOCK)
    see_clean = torch.cat(
        [clean[:, :, None] >= clean[:, None, :], block_start[:, :, None] > clean[:, None, :]], 1
    )
    owner = torch.cat([sample_of_row, sample_of_noisy], 1)
    see_clean = see_clean & (owner[:, :, None] == sample_of_row[:, None, :])
    see_clean = see_clean & (real[:, None, :] > 0)
    see_noisy = torch.zeros(n, positions.shape[1], noisy.shape[1], dtype=torch.bool, device=device)
    see_noisy[:, length:] = copy[:, None] == copy[None, :]
    mask = torch.cat([see_clean, see_noisy], 2)
    # padding rows attend to themselves so that their softmax is defined
    mask = mask | torch.eye(positions.shape[1], dtype=torch.bool, device=device)
    rotary = int(config.head_dim * config.partial_rotary_factor)
    frequency = config.rope_theta ** (-torch.arange(0, rotary, 2, device=device) / rotary)
    angle = positions[:, None, :, None].float() * frequency
    carries = F.pad((sample[:, 1:] == sample[:, :-1]).float(), (1, 0))
    real = torch.cat([real, real.new_ones(noisy.shape)], 1)
    return Streams(real, sample_of_row, chunk, carries, mask[:, None], angle.cos(), angle.sin())
