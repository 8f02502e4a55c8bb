"""A model's structure without memory is the loaded model's structure, for every family."""

from pathlib import Path
from typing import Any

import pytest
import torch

from blockdiff.checkpoint import load_model, meta_model
from blockdiff.checkpoint.sizes import model_tensors, tensor_bytes
from blockdiff.config import parse_config
from blockdiff.models.expert_layout import FUSED
from blockdiff.models.registry import FAMILIES

from .checkpoints import TINY, write
from .test_config_attention import CONFIGS
from .test_config_diffusion_gemma import TEXT

ALL: dict[str, dict[str, Any]] = {
    "clover_moe": TINY,
    "qwen3_5_moe": {**TINY, "model_type": "qwen3_5_moe"},
    **CONFIGS,
    "diffusion_gemma": {**TEXT, "model_type": "diffusion_gemma_text"},
    "qwen3": {**CONFIGS["sdar"], "model_type": "qwen3"},
    "qwen3_moe": {**CONFIGS["sdar_moe"], "model_type": "qwen3_moe"},
}


def test_the_list_is_complete() -> None:
    assert set(ALL) == set(FAMILIES)


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_tensors_as_a_loaded_model(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    config = parse_config(ALL[family])
    shapes = FAMILIES[family].shapes(config, FUSED)
    tensors = {name: torch.rand(shape) for name, shape in shapes.items()}
    folder = write(tmp_path, tensors, ALL[family])
    loaded = load_model(folder, dtype=str(dtype).removeprefix("torch."))
    empty = meta_model(config, dtype)
    found, wanted = model_tensors(empty), model_tensors(loaded)
    assert all(tensor.is_meta for tensor in found)
    assert empty.device.type == "meta" and empty.info == loaded.info
    assert sorted((t.shape, str(t.dtype)) for t in found) == sorted(
        (t.shape, str(t.dtype)) for t in wanted
    )
    assert sum(map(tensor_bytes, found)) == sum(map(tensor_bytes, wanted))


def test_a_model_too_large_for_this_machine(tmp_path: Path) -> None:
    config = parse_config(
        {
            **TINY,
            "hidden_size": 4096,
            "num_experts": 4096,
            "vocab_size": 10**6,
            "num_hidden_layers": 8,
            "moe_intermediate_size": 4096,
        }
    )
    model = meta_model(config, torch.bfloat16)
    assert sum(map(tensor_bytes, model_tensors(model))) > 3e12
