"""A tiny random model of every family and formulation. Holds no tests."""

from pathlib import Path
from typing import Any

import torch

from blockdiff.checkpoint import load_model
from blockdiff.config import parse_config
from blockdiff.models import registry
from blockdiff.models.expert_layout import ONE_BY_ONE
from blockdiff.models.trunk import LanguageModel
from tests.unit.planning.families import GEMMA, LLADA2, QWEN3_MOE, SDAR

from .checkpoints import TINY, write

FAMILIES: dict[str, dict[str, Any]] = {
    "hybrid A": {**TINY, "model_type": "qwen3_5_moe"},
    "hybrid B": {**TINY, "preview_formulation": "B"},
    "hybrid C": TINY,
    "coreset": {**TINY, "expert_coreset": {"rule": "max_pool", "capacity": 3}},
    "llada2": LLADA2,
    "llada2 pools": {**LLADA2, "expert_capacity": 4},
    "sdar": SDAR,
    "qwen3": QWEN3_MOE,
    # a ring of 15 places, shorter than the prompts
    "diffusion_gemma": GEMMA,
}


def make_model(family: str, folder: Path) -> LanguageModel:
    """The model of ``family``, always the same; its checkpoint goes to ``folder``."""
    config = FAMILIES[family]
    shapes = registry.FAMILIES[config["model_type"]].shapes(parse_config(config), ONE_BY_ONE)
    torch.manual_seed(3)
    tensors = {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    return load_model(write(folder, tensors, config))
