"""A small config of every family, and random checkpoints of them. Holds no tests."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from blockdiff.config import parse_config
from blockdiff.models.expert_layout import ONE_BY_ONE
from blockdiff.models.registry import FAMILIES
from tests.models.checkpoints import TINY

_TRUNK: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "mask_token_id": 31,
    "eos_token_id": 1,
    "block_size": 8,
    "max_position_embeddings": 4096,
}
_EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
LLADA2: dict[str, Any] = {
    **_TRUNK,
    **_EXPERTS,
    "model_type": "llada2_moe",
    "intermediate_size": 24,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "num_shared_experts": 1,
}
SDAR: dict[str, Any] = {**_TRUNK, "model_type": "sdar", "intermediate_size": 24}
SDAR_MOE: dict[str, Any] = {**_TRUNK, **_EXPERTS, "model_type": "sdar_moe"}
QWEN3_MOE = {**SDAR_MOE, "model_type": "qwen3_moe", "intermediate_size": 24, "mlp_only_layers": [1]}
GEMMA: dict[str, Any] = {
    **{name: value for name, value in _TRUNK.items() if name != "mask_token_id"},
    "model_type": "diffusion_gemma",
    "intermediate_size": 24,
    "moe_intermediate_size": 12,
    "num_experts": 8,
    "top_k_experts": 2,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "sliding_window": 16,
    "canvas_length": 8,
    "tie_word_embeddings": True,
}
TIED = {"tie_word_embeddings": True}
_EVERY: list[dict[str, Any]] = [
    TINY,
    {**TINY, **TIED},
    {**TINY, "model_type": "qwen3_5_moe"},
    {**TINY, "preview_formulation": "B"},
    {**TINY, "shared_expert_intermediate_size": 20, "num_hidden_layers": 7},
    {**TINY, "num_attention_heads": 6, "num_key_value_heads": 3, "linear_num_key_heads": 2},
    LLADA2,
    {**LLADA2, "num_shared_experts": 0, "first_k_dense_replace": 0, **TIED},
    {**LLADA2, "num_shared_experts": 2, "moe_router_enable_expert_bias": False},
    SDAR,
    {**SDAR, **TIED},
    SDAR_MOE,
    QWEN3_MOE,
    {**SDAR, "model_type": "qwen3"},
    GEMMA,
]
# of families that load
CONFIGS = [config for config in _EVERY if config["model_type"] in FAMILIES]

# wide enough that weights, caches and rounds can be told from noise
_LARGE = {"vocab_size": 8192, "head_dim": 64, "num_hidden_layers": 4, "block_size": 32}
_MOST_EXPERTS = {"num_experts": 32, "moe_intermediate_size": 256, "hidden_size": 512}
_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}
_DELTA = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "shared_expert_intermediate_size": 256,
    "max_position_embeddings": 4096,
}
LARGE: dict[str, dict[str, Any]] = {
    "hybrid": {**TINY, **_LARGE, **_HEADS, **_MOST_EXPERTS, **_DELTA},
    "llada2_moe": {**LLADA2, **_LARGE, **_HEADS, **_MOST_EXPERTS, "intermediate_size": 1024},
    "sdar": {
        **SDAR,
        **_LARGE,
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
    },
}


def write_random(folder: Path, config: dict[str, Any]) -> Path:
    """A checkpoint in float16, which no model computes in: nothing stays a view of the file."""
    parsed = parse_config(config)
    noise = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)).half() * 0.03
    tensors, start = {}, 0
    for name, shape in FAMILIES[parsed.model_type].shapes(parsed, ONE_BY_ONE).items():
        # pieces of one pool of noise, each from another place
        size, start = math.prod(shape), (start + 7919) % len(noise)
        whole = noise.roll(-start).repeat(-(-size // len(noise)))
        prefix = "" if name.startswith("lm_head") else "model."
        tensors[prefix + name] = whole[:size].reshape(shape).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, str(folder / "model.safetensors"))
    return folder
