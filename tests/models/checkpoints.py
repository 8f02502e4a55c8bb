"""Tiny random checkpoints on disk, and ways to break them. Holds no tests."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from blockdiff.config import parse_config
from blockdiff.models.expert_layout import FUSED, ONE_BY_ONE
from blockdiff.models.weights import expected_shapes

TINY: dict[str, Any] = {
    "model_type": "clover_moe",
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "mask_token_id": 31,
    "eos_token_id": 1,
    "block_size": 8,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


def random_tensors(config: dict[str, Any], has_fused_experts: bool = False) -> dict[str, Tensor]:
    """Canonical name -> random tensor."""
    torch.manual_seed(0)
    shapes = expected_shapes(parse_config(config), FUSED if has_fused_experts else ONE_BY_ONE)
    return {name: torch.randn(shape) * 0.3 for name, shape in shapes.items()}


def write(
    folder: Path,
    tensors: dict[str, Tensor],
    config: dict[str, Any] | None = None,
    shards: int = 1,
    prefix: str = "model.",
) -> Path:
    """Write a checkpoint folder; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY if config is None else config))
    named = {n if n.startswith("lm_head") else prefix + n: t for n, t in tensors.items()}
    if shards == 1:
        save_file(named, str(folder / "model.safetensors"))
        return folder
    weight_map = {name: f"part-{i % shards}.safetensors" for i, name in enumerate(named)}
    for file in set(weight_map.values()):
        save_file({n: t for n, t in named.items() if weight_map[n] == file}, str(folder / file))
    index = {"weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
