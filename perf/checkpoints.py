"""Random checkpoints of any size, readable by this project and by transformers alike.

Weights are random, so texts mean nothing; the output head is scaled so that confidences spread as
those of trained models do. Knows the config keys of two families; knows nothing of benchmarks.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from blockdiff.config import load_config
from blockdiff.models.expert_layout import FUSED, ONE_BY_ONE, ExpertLayout
from blockdiff.models.registry import FAMILIES

MASKED, CANVAS = "sdar_moe", "diffusion_gemma"
FAMILY_NAMES = (MASKED, CANVAS)
_VISION = {
    "model_type": "gemma4_vision",
    **dict.fromkeys(("hidden_size", "intermediate_size", "head_dim", "global_head_dim"), 16),
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1),
    "patch_size": 4,
    "pooling_kernel_size": 1,
    "position_embedding_size": 8,
}


@dataclass(frozen=True)
class ModelSize:
    """What a random model is made of; half as many key heads as query heads."""

    hidden: int = 256
    layers: int = 4
    heads: int = 8
    head_dim: int = 32
    experts: int = 16
    chosen: int = 4
    inner: int = 256
    vocabulary: int = 4096
    block: int = 32
    context: int = 4096
    sharpness: float = 14.0
    """Deviation of the logits: at 14, usual thresholds settle several tokens a step."""


def write_checkpoint(folder: Path, family: str, size: ModelSize, seed: int = 0) -> Path:
    """A random checkpoint of ``family`` (one of ``FAMILY_NAMES``) in float32; returns ``folder``.

    A folder ``qwen3_moe`` in that of ``sdar_moe`` has the same tensors under transformers' name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keys = _masked_keys(size) if family == MASKED else _canvas_keys(size)
    (folder / "config.json").write_text(json.dumps(keys))
    layout: ExpertLayout = ONE_BY_ONE if family == MASKED else FUSED
    shapes = FAMILIES[family].shapes(load_config(folder), layout)
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _random(name, shape, generator) for name, shape in shapes.items()}
    if family == MASKED:
        head = tensors["lm_head.weight"].mul_(size.sharpness)
        head[keys["mask_token_id"]] = 0
    stored = {_stored_name(name): tensor for name, tensor in tensors.items()}
    save_file(stored, str(folder / "model.safetensors"), metadata={"format": "pt"})
    if family == MASKED:
        _write_twin(folder, keys)
    return folder


def _stored_name(name: str) -> str:
    return name if name.startswith("lm_head.") else f"model.{name}"


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Matrices keep the size of what they multiply; norms and scales lie around 1."""
    if len(shape) == 1:
        return 0.75 + 0.5 * torch.rand(shape, generator=generator)
    scale = 1.0 if "embed_tokens" in name else shape[-1] ** -0.5
    return torch.randn(shape, generator=generator) * scale


def _masked_keys(size: ModelSize) -> dict[str, Any]:
    return {
        "model_type": MASKED,
        "block_size": size.block,
        "mask_token_id": size.vocabulary - 1,
        "eos_token_id": size.vocabulary - 2,
        "vocab_size": size.vocabulary,
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads // 2,
        "head_dim": size.head_dim,
        "num_experts": size.experts,
        "num_experts_per_tok": size.chosen,
        "moe_intermediate_size": size.inner,
        "norm_topk_prob": True,
        "max_position_embeddings": size.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }


def _canvas_keys(size: ModelSize) -> dict[str, Any]:
    kinds = ["sliding_attention"] * (size.layers - 1) + ["full_attention"]
    text = {
        "model_type": "diffusion_gemma_text",
        "vocab_size": size.vocabulary,
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "moe_intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "layer_types": kinds,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads // 2,
        "num_global_key_value_heads": size.heads // 2,
        "head_dim": size.head_dim,
        "global_head_dim": size.head_dim,
        "num_experts": size.experts,
        "top_k_experts": size.chosen,
        "sliding_window": 512,
        "max_position_embeddings": size.context,
        "eos_token_id": size.vocabulary - 2,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    special = ("image_token_id", "boi_token_id", "eoi_token_id")
    return {
        "model_type": CANVAS,
        "canvas_length": size.block,
        "text_config": text,
        "vision_config": _VISION,
        "tie_word_embeddings": True,
        **{name: size.vocabulary - 3 - number for number, name in enumerate(special)},
    }


def _write_twin(folder: Path, keys: dict[str, Any]) -> None:
    twin = folder / "qwen3_moe"
    twin.mkdir()
    own = {name: value for name, value in keys.items() if name != "block_size"}
    (twin / "config.json").write_text(json.dumps({**own, "model_type": "qwen3_moe"}))
    (twin / "model.safetensors").symlink_to(folder / "model.safetensors")
