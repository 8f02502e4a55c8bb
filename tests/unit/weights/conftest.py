"""A small checkpoint of two shards, made without torch, and ways to run the command."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdiff.cli.main import run

Run = Callable[..., tuple[int, str, str]]


def write_shard(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """Write a safetensors file: name -> (dtype, shape, bytes)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + len(data)]}
        start += len(data)
    text = json.dumps(header).encode()
    data = b"".join(data for _, _, data in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards of one size, so that swapping them changes no size."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"model_type": "clover_moe"}')
    weight_map = {}
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        tensor = f"model.layers.{number}.mlp.experts.gate_up_proj"
        write_shard(made / name, {tensor: ("BF16", [2, 4, 8], bytes([number]) * 128)})
        weight_map[tensor] = name
    index = {"weight_map": weight_map}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    return made


@pytest.fixture
def blockdiff(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command line; returns exit code, stdout and stderr."""

    def command(*words: object) -> tuple[int, str, str]:
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command
