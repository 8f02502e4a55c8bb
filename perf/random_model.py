"""A hybrid model of middle size with random weights, made in memory, and rounds to run it on.

Half the widths of Qwen3.5-35B-A3B's text model, 12 of its 40 layers and 64 of its 256 experts: both
kinds of layers in their usual order, so that nothing of a step is left out. Knows nothing of time.
"""

import zlib
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from blockdiff.cache import SlotCaches
from blockdiff.checkpoint.packing import pack_projections
from blockdiff.checkpoint.source import DenseSource
from blockdiff.config import AnyConfig, parse_config
from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.expert_layout import ONE_BY_ONE
from blockdiff.models.group import ALONE
from blockdiff.models.hybrid import HybridModel
from blockdiff.models.numerics import PACKED
from blockdiff.models.registry import FAMILIES
from blockdiff.models.share import Share

KEYS: dict[str, Any] = {
    "model_type": "clover_moe",
    "vocab_size": 32768,
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "mask_token_id": 32767,
    "eos_token_id": 1,
    "block_size": 32,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


@dataclass(frozen=True)
class RandomTensor:
    """A stored tensor whose numbers depend on its name and on the part that is read alone.

    They are bfloat16 numbers, so that models of any dtype have the same weights.
    """

    name: str
    shape: tuple[int, ...]

    def read_into(self, target: Tensor, place: tuple[slice, ...] = ()) -> None:
        """Matrices keep the size of what they multiply; norms and other vectors lie around 1."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.name}{place}".encode()))
        numbers = torch.empty(target.shape)
        if len(self.shape) == 1:
            numbers.uniform_(0.75, 1.25, generator=generator)
        else:
            scale = 1.0 if "embed_tokens" in self.name else self.shape[-1] ** -0.5
            numbers.normal_(0, scale, generator=generator)
        target.copy_(numbers.bfloat16())


def random_model(dtype: torch.dtype, keys: dict[str, Any] = KEYS) -> HybridModel:
    """The model on the CPU, computing in ``dtype`` as the process's choices say."""
    config: AnyConfig = parse_config(keys)
    family = FAMILIES[config.model_type]
    shapes = family.shapes(config, ONE_BY_ONE)
    tensors = {name: RandomTensor(name, shape) for name, shape in shapes.items()}
    source = DenseSource(tensors, torch.device("cpu"), dtype, family.float32)
    source.numerics = PACKED
    model = cast(HybridModel, family.build(config, source, Share(config, ALONE)))
    pack_projections(model)
    return model


def filled_caches(model: HybridModel, slots: int, context: int) -> SlotCaches:
    """Caches of ``slots`` requests that hold ``context`` random tokens each."""
    caches = model.new_caches(slots, 2 * context)
    generator = torch.Generator().manual_seed(slots)
    for store in (*caches.page_stores, *caches.state_stores):
        store.copy_(torch.empty(store.shape).normal_(0, 0.5, generator=generator))
    return caches


def preview_round(model: HybridModel, slots: int, context: int) -> RoundBatch:
    """One preview of a block in every slot, half of its tokens masked."""
    length, mask = model.info.block_length, model.info.mask_token_id
    generator = torch.Generator().manual_seed(1)
    segments = []
    for slot in range(slots):
        ids = torch.randint(0, mask, (length,), generator=generator)
        ids[::2] = mask
        segments.append(Segment(Phase.PREVIEW, slot, context, ids.tolist(), range(length)))
    return RoundBatch.from_segments(segments)
