"""Quantising needs the same little memory for every checkpoint. Run: pytest tests/models"""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from blockdiff.config import parse_config
from blockdiff.models.expert_layout import FUSED, ONE_BY_ONE
from blockdiff.models.registry import FAMILIES
from blockdiff.weights.headers import read_headers

from .checkpoints import TINY

# float16: experts of 134 MB, an embedding and a head of 67 MB each, q_proj of 33 MB
WIDE: dict[str, Any] = {
    **TINY,
    "vocab_size": 32768,
    "hidden_size": 1024,
    "num_hidden_layers": 1,
    "layer_types": ["full_attention"],
    "num_attention_heads": 16,
    "head_dim": 512,
    "num_experts": 64,
    "moe_intermediate_size": 352,
    "shared_expert_intermediate_size": 352,
}
LARGEST = 32768 * 1024 * 2
# pieces, and code that is first used meanwhile; less than the embedding alone
SLACK = 56 << 20

SCRIPT = """
import sys
from pathlib import Path
import torch
from blockdiff.checkpoint.quantize import quantize_checkpoint
from blockdiff.checkpoint.report import LoadMeter
from blockdiff.checkpoint.scheme import Scheme

torch.zeros(8) @ torch.zeros(8)
meter = LoadMeter()
group = 32 if sys.argv[3] == "int4" else None
quantize_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), Scheme(sys.argv[3], group))
print(meter.report(0, 0, 0).host_peak)
"""


def write_wide(folder: Path, is_stacked: bool) -> int:
    """A checkpoint of one pattern over and over; its bytes."""
    folder.mkdir()
    layout = FUSED if is_stacked else ONE_BY_ONE
    shapes = FAMILIES["clover_moe"].shapes(parse_config(WIDE), layout)
    pattern = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float16)
    tensors = {
        name if name.startswith("lm_head") else f"model.{name}": np.resize(pattern, shape)
        for name, shape in shapes.items()
    }
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(WIDE))
    return sum(math.prod(shape) * 2 for shape in shapes.values())


@pytest.mark.parametrize(("kind", "is_stacked"), [("int8", False), ("int4", True)])
def test_peak_memory_is_bounded(tmp_path: Path, kind: str, is_stacked: bool) -> None:
    size = write_wide(tmp_path / "a", is_stacked)
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "a"), str(tmp_path / "b"), kind]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert size > 4 * LARGEST > 4 * SLACK
    assert 0 < int(result.stdout) < SLACK
    names = {header.name for header in read_headers(tmp_path / "b")}
    assert "model.layers.0.mlp.experts.63.down_proj.weight_scale" in names
