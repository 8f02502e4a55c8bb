"""Loading takes the memory of the weights and little more, whatever the layout of the files."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from blockdiff.checkpoint import load_with_report
from blockdiff.checkpoint.sizes import model_tensors

from .checkpoints import TINY, random_tensors, write

# one wide layer: experts of 201 MB and an embedding and a head of 33 MB each in float32
WIDE: dict[str, Any] = {
    **TINY,
    "vocab_size": 8192,
    "hidden_size": 1024,
    "num_hidden_layers": 1,
    "num_experts": 32,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
SLACK = 64 << 20

SCRIPT = """
import json, resource, sys
import torch
from blockdiff.checkpoint import load_with_report
from blockdiff.checkpoint.sizes import model_tensors, tensor_bytes

torch.zeros(8) @ torch.zeros(8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
loaded = load_with_report(sys.argv[1], dtype=sys.argv[2])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
weights = sum(tensor_bytes(tensor) for tensor in model_tensors(loaded.model))
largest = max(tensor_bytes(tensor) for tensor in model_tensors(loaded.model))
report = loaded.report
print(json.dumps([weights, largest, after - before, report.host_peak, report.host_bound]))
"""


@pytest.mark.parametrize("is_fused", [False, True], ids=["per expert", "stacked"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_peak_memory_is_bounded(tmp_path: Path, is_fused: bool, dtype: str) -> None:
    tensors = random_tensors(WIDE, is_fused)
    folder = write(tmp_path, {name: t.bfloat16() for name, t in tensors.items()}, WIDE, shards=2)
    stored = sum(tensor.numel() for tensor in tensors.values())
    del tensors
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), dtype], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    weights, largest, grown, host_peak, host_bound = json.loads(result.stdout)
    assert weights == pytest.approx(stored * (4 if dtype == "float32" else 2), rel=0.001)
    assert host_bound == weights + largest
    # Much less than the bound: pieces of files instead of a whole tensor twice.
    assert weights * 0.95 < host_peak <= weights + SLACK
    assert grown <= weights + SLACK


def test_the_report_tells_tensors_bytes_speed_and_bound(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    report = load_with_report(write(tmp_path, tensors)).report
    assert report.tensors == len(tensors)
    assert report.bytes_read == sum(tensor.numel() * 4 for tensor in tensors.values())
    line = str(report)
    for part in (
        f"loaded {len(tensors)} tensors",
        " MB in ",
        " GB/s)",
        "peak host memory",
        "weights and largest tensor",
    ):
        assert part in line


def test_a_loaded_model_shares_nothing_with_its_files(tmp_path: Path) -> None:
    folder = write(tmp_path, random_tensors(TINY))
    held = model_tensors(load_with_report(folder).model)
    before = [tensor.clone() for tensor in held]
    shard = folder / "model.safetensors"
    with shard.open("r+b") as file:
        file.seek(shard.stat().st_size // 2)
        file.write(b"\0" * (shard.stat().st_size // 2))
    assert all(map(torch.equal, held, before))
