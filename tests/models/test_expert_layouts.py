"""Experts stored one by one or in stacks give the same model. Run: pytest tests/models"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.checkpoint.quantize import quantize_checkpoint
from blockdiff.checkpoint.scheme import Scheme
from blockdiff.config import parse_config
from blockdiff.core import Phase
from blockdiff.errors import ConfigError
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.expert_layout import ONE_BY_ONE
from blockdiff.models.registry import FAMILIES
from blockdiff.models.trunk import LanguageModel

from .checkpoints import write
from .quantized_checkpoints import CONFIGS as SMALL
from .quantized_checkpoints import TRUNK

CONFIGS: dict[str, dict[str, Any]] = {
    **{family: config for family, config in SMALL.items() if family != "sdar"},
    "qwen3_5_moe": {**SMALL["clover_moe"], "model_type": "qwen3_5_moe"},
    "sdar_moe": {**TRUNK, "model_type": "sdar_moe"},
    "qwen3_moe": {**TRUNK, "model_type": "qwen3_moe"},
}
EXPERTS, PARTS = 4, ("gate_proj", "up_proj", "down_proj")
Stack = Callable[[str], Tensor]


def fused(stack: Stack, end: str) -> dict[str, Tensor]:
    both = torch.cat((stack("gate_proj"), stack("up_proj")), dim=1)
    return {f"gate_up_proj{end}": both, f"down_proj{end}": stack("down_proj")}


def separate(stack: Stack, end: str) -> dict[str, Tensor]:
    return {part + end: stack(part) for part in PARTS}


LAYOUTS = {
    "fused": (fused, ""),
    "fused.weight": (fused, ".weight"),
    "separate": (separate, ""),
    "separate.weight": (separate, ".weight"),
}


def restack(tensors: dict[str, Tensor], layout: str) -> dict[str, Tensor]:
    """The same experts in stacks."""
    join, end = LAYOUTS[layout]
    found = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for first in [name for name in tensors if name.endswith(".experts.0.gate_proj.weight")]:
        own = first.removesuffix("0.gate_proj.weight")

        def stack(part: str, own: str = own) -> Tensor:
            return torch.stack([tensors[f"{own}{e}.{part}.weight"] for e in range(EXPERTS)])

        found |= {own + name: tensor for name, tensor in join(stack, end).items()}
    return found


def make_tensors(family: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = FAMILIES[family].shapes(parse_config(CONFIGS[family]), ONE_BY_ONE)
    return {n: torch.randn(shape, generator=generator) * 0.3 for n, shape in shapes.items()}


def logits(model: LanguageModel) -> Tensor:
    caches = model.new_caches(1, 16)
    prefill = Segment(Phase.PREFILL, 0, 0, [3, 4, 5, 6], range(4), 4)
    preview = Segment(Phase.PREVIEW, 0, 4, [31] * 4, range(4))
    return model.forward(RoundBatch.from_segments([prefill, preview]), caches)


@pytest.mark.parametrize("family", CONFIGS)
def test_logits_are_those_of_experts_one_by_one(tmp_path: Path, family: str) -> None:
    tensors, config = make_tensors(family), CONFIGS[family]
    folder = write(tmp_path / "one by one", tensors, config)
    want, narrow = logits(load_model(folder)), logits(load_model(folder, dtype="int8"))
    assert not torch.equal(want, narrow)
    for layout in LAYOUTS:
        folder = write(tmp_path / layout, restack(tensors, layout), config)
        assert torch.equal(logits(load_model(folder)), want), layout
        assert torch.equal(logits(load_model(folder, dtype="int8")), narrow), layout


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["llada2_moe", "diffusion_gemma"])
def test_a_quantised_copy_has_them_one_by_one(tmp_path: Path, family: str, layout: str) -> None:
    source = write(tmp_path / "a", restack(make_tensors(family), layout), CONFIGS[family])
    quantize_checkpoint(source, tmp_path / "b", Scheme("int8"))
    names = load_file(tmp_path / "b" / "model-00001-of-00001.safetensors")
    assert any(name.endswith(".experts.3.up_proj.weight_scale") for name in names)
    got = logits(load_model(tmp_path / "b", dtype="bfloat16"))
    assert torch.equal(got, logits(load_model(source, dtype="int8")))


def test_layouts_are_not_mixed(tmp_path: Path) -> None:
    tensors = restack(make_tensors("sdar_moe"), "separate")
    name = "layers.1.mlp.experts.up_proj"
    tensors[name + ".weight"] = tensors.pop(name)
    folder = write(tmp_path, tensors, CONFIGS["sdar_moe"])
    with pytest.raises(ConfigError, match=r"up_proj is missing; .*up_proj\.weight is unexpected"):
        load_model(folder)


@pytest.mark.parametrize("family", ["llada2_moe", "clover_moe", "sdar_moe"])
def test_the_head_may_have_the_prefix_too(tmp_path: Path, family: str) -> None:
    folder = write(tmp_path / "a", make_tensors(family), CONFIGS[family])
    want = logits(load_model(folder))
    file = str(folder / "model.safetensors")
    named = load_file(file)
    named["model.lm_head.weight"] = named.pop("lm_head.weight")
    save_file(named, file)
    assert torch.equal(logits(load_model(folder)), want)
    quantize_checkpoint(folder, tmp_path / "b", Scheme("int8"))
    copy = logits(load_model(tmp_path / "b", dtype="bfloat16"))
    assert torch.equal(copy, logits(load_model(folder, dtype="int8")))
