"""Writes a random transformers model as a checkpoint folder, in layouts that exist in the wild."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """How the same tensors are stored."""

    is_fused: bool  # experts stacked in two tensors, or three tensors for each
    is_nested: bool  # as multimodal files: keys in text_config, names below language_model
    has_extras: bool  # parts that text generation never uses


layouts = st.builds(Layout, st.booleans(), st.booleans(), st.booleans())


def random_model(make: Callable[[], Any], seed: int) -> Any:
    """A model whose matrices keep the size of what they multiply and whose vectors vary."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: nn.Module = make()
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape)
            with torch.no_grad():
                if parameter.ndim == 1:
                    parameter.add_(noise, alpha=0.3)
                else:
                    parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    return model


def write_checkpoint(folder: Path, model: Any, layout: Layout, **keys: Any) -> Path:
    """Write ``model`` with its config, to which ``keys`` are added; returns ``folder``."""
    config = {**model.config.to_dict(), **keys}
    if layout.is_nested:
        family = str(config["model_type"]).removesuffix("_text")
        config = {"model_type": family, "text_config": config}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if not layout.is_fused:
        tensors = _per_expert(tensors)
    if layout.is_nested:
        tensors = {n.replace("model.", "model.language_model.", 1): t for n, t in tensors.items()}
    if layout.has_extras:
        tensors |= {"mtp.fc.weight": torch.zeros(2, 3), "model.visual.norm": torch.zeros(4)}
    save_file(tensors, str(folder / "model.safetensors"))
    return folder


def _per_expert(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stacked experts as three matrices each."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own, _, kind = name.rpartition(".experts.")
        if kind == "gate_up_proj":
            for number, both in enumerate(tensor):
                for part, matrix in zip(("gate", "up"), both.chunk(2), strict=True):
                    found[f"{own}.experts.{number}.{part}_proj.weight"] = matrix.clone()
        elif kind == "down_proj":
            for number, matrix in enumerate(tensor):
                found[f"{own}.experts.{number}.down_proj.weight"] = matrix.clone()
        else:
            found[name] = tensor
    return found
