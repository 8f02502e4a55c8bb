"""Headers tell what a checkpoint holds. Run: pytest tests/unit/weights"""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockdiff.weights.groups import group_of
from tests.models.quantized_checkpoints import FORMATS, write_pair

from .conftest import Run, write_shard

ROOT = Path(__file__).resolve().parents[3]


def test_groups_and_tensors_of_the_demo(blockdiff: Run) -> None:
    code, out, _ = blockdiff("weights", "inspect", ROOT / "demo" / "checkpoint", "--format", "json")
    assert code == 0
    found = json.loads(out)
    groups = {group["name"]: group for group in found["groups"]}
    assert groups["experts"]["parameters"] == 8 * 8 * 3 * 64 * 128
    assert groups["embedding"]["parameters"] == groups["output head"]["parameters"] == 568 * 128
    assert "other" not in groups and "quantisation scales" not in groups
    for key in ("parameters", "size"):
        assert found[key] == sum(group[key] for group in found["groups"])
    assert len(found["tensors"]) == sum(group["tensors"] for group in found["groups"])
    one = next(t for t in found["tensors"] if t["name"] == "lm_head.weight")
    assert (one["dtype"], one["shape"], one["size"]) == ("BF16", [568, 128], 568 * 128 * 2)


def test_table_lists_tensors_when_asked(folder: Path, blockdiff: Run) -> None:
    tensor = "model.layers.1.mlp.experts.gate_up_proj"
    code, out, _ = blockdiff("weights", "inspect", folder)
    assert code == 0 and "experts" in out and tensor not in out
    code, out, _ = blockdiff("weights", "inspect", folder, "--tensors")
    assert code == 0 and tensor in out and "2 x 4 x 8" in out


@pytest.mark.parametrize(("dtype", "group"), [("int4", "32"), ("int4", "64"), ("int8", None)])
def test_weights_of_a_quantised_copy_are_counted_one_by_one(
    tmp_path: Path, blockdiff: Run, dtype: str, group: str | None
) -> None:
    source, copy = ROOT / "demo" / "checkpoint", tmp_path / "copy"
    words = ["--dtype", dtype, *(["--group-size", group] if group else [])]
    assert blockdiff("weights", "quantize", source, copy, *words)[0] == 0
    first, second = (
        json.loads(blockdiff("weights", "inspect", path, "--format", "json")[1])
        for path in (source, copy)
    )
    assert first["parameters"] == second["parameters"] and second["size"] < first["size"]
    counts = [{g["name"]: g["parameters"] for g in found["groups"]} for found in (first, second)]
    assert counts[1] == {**counts[0], "quantisation scales": 0}
    shard = next(copy.glob("*.safetensors"))
    assert second["size"] == sum(tensor["size"] for tensor in second["tensors"])
    out = blockdiff("weights", "inspect", shard)[1]
    assert f"{first['parameters']:,}" in out and "\n1 file\n" in out


def test_weights_packed_in_8_bits_are_counted_by_the_config(tmp_path: Path, blockdiff: Run) -> None:
    folder, dense = write_pair(tmp_path, "sdar", FORMATS["int8-packed"])
    found, wanted = (
        json.loads(blockdiff("weights", "inspect", path, "--format", "json")[1])["parameters"]
        for path in (folder, dense)
    )
    assert found == wanted


def test_keys_that_nothing_uses_are_named(tmp_path: Path, blockdiff: Run) -> None:
    demo = ROOT / "demo" / "checkpoint"
    config = json.loads((demo / "config.json").read_text())
    write_shard(tmp_path / "model.safetensors", {"x": ("BF16", [1], b"ab")})
    for surprise, said in (({}, False), ({"surprise": 1}, True)):
        (tmp_path / "config.json").write_text(json.dumps({**config, **surprise}))
        out = blockdiff("weights", "inspect", tmp_path)[1]
        assert ("keys not used: surprise" in out) == said
        found = json.loads(blockdiff("weights", "inspect", tmp_path, "--format", "json")[1])
        assert found["unused_config_keys"] == list(surprise)


@pytest.mark.parametrize("change", ["overlap", "hole"])
def test_tensors_that_do_not_lie_side_by_side(tmp_path: Path, blockdiff: Run, change: str) -> None:
    path = tmp_path / "model.safetensors"
    start = 2 if change == "overlap" else 6
    entries = {
        "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
        "b": {"dtype": "U8", "shape": [4], "data_offsets": [start, start + 4]},
    }
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"x" * 8)
    code, _, error = blockdiff("weights", "inspect", path)
    assert code == 2 and "b overlaps another or leaves a hole" in error


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("model.layers.0.mlp.experts.3.gate_proj.weight", "experts"),
        ("model.language_model.layers.0.mlp.shared_expert.up_proj.weight", "shared expert"),
        ("model.layers.0.mlp.shared_expert_gate.weight", "router"),
        ("model.layers.0.mlp.gate.weight", "router"),
        ("model.layers.0.linear_attn.norm.weight", "norms"),
        ("model.layers.0.linear_attn.A_log", "gated delta"),
        ("model.layers.0.linear_attn.bd_softmax_logit_scale", "preview operator"),
        ("model.layers.0.self_attn.q_norm.weight", "norms"),
        ("model.layers.0.attention.query_key_value.weight", "attention"),
        ("model.layers.0.mlp.down_proj.weight", "dense feed-forward"),
        ("model.layers.0.mlp.experts.0.up_proj.weight_scale", "quantisation scales"),
        ("model.visual.blocks.0.norm1.weight", "not used for text"),
        ("mtp.layers.0.mlp.gate.weight", "not used for text"),
        ("something.else", "other"),
    ],
)
def test_group_of(name: str, group: str) -> None:
    assert group_of(name) == group


def shard(folder: Path) -> Path:
    return folder / "model-00001-of-00002.safetensors"


def test_a_single_file_can_be_inspected(folder: Path, blockdiff: Run) -> None:
    code, out, _ = blockdiff("weights", "inspect", shard(folder), "--format", "json")
    assert code == 0 and len(json.loads(out)["tensors"]) == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "damaged or truncated"),
        (b"\x05", "damaged or truncated"),
        (struct.pack("<Q", 1 << 60) + b"{}", "damaged or truncated"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (struct.pack("<Q", 2) + b"{x", "not JSON"),
        (struct.pack("<Q", 7) + b'{"a":1}', "entry of a"),
    ],
)
def test_a_damaged_header_is_named(folder: Path, blockdiff: Run, data: bytes, said: str) -> None:
    shard(folder).write_bytes(data)
    code, _, error = blockdiff("weights", "inspect", folder)
    assert code == 2 and said in error and shard(folder).name in error
    assert len(error.splitlines()) == 1


def test_a_truncated_or_missing_shard_is_named(folder: Path, blockdiff: Run) -> None:
    os.truncate(shard(folder), shard(folder).stat().st_size - 1)
    code, _, error = blockdiff("weights", "inspect", folder)
    assert code == 2 and "truncated" in error and shard(folder).name in error
    shard(folder).unlink()
    code, _, error = blockdiff("weights", "inspect", folder)
    assert code == 2 and "missing" in error and shard(folder).name in error


def test_a_wrong_shape_and_a_double_name_are_named(folder: Path, blockdiff: Run) -> None:
    write_shard(shard(folder), {"a": ("F32", [3], bytes(8))})
    code, _, error = blockdiff("weights", "inspect", folder)
    assert code == 2 and "a has 8 bytes for 12" in error
    (folder / "model.safetensors.index.json").unlink()
    (folder / "copy.safetensors").write_bytes(
        (folder / "model-00002-of-00002.safetensors").read_bytes()
    )
    shard(folder).unlink()
    code, _, error = blockdiff("weights", "inspect", folder)
    assert code == 2 and "stored twice" in error


@pytest.mark.parametrize("named", [["x"], {}, "", "..", "a/b", "x" * 256, "\ud800" * 200, None])
def test_an_index_may_only_name_files_beside_it(folder: Path, blockdiff: Run, named: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": named}}))
    code, _, error = blockdiff("weights", "inspect", folder)
    assert code == 2 and "may only name files beside it" in error and error.count("\n") == 1


def test_other_files_beside_a_single_one_are_not_counted(folder: Path, blockdiff: Run) -> None:
    """As in loading: what lies beside the model is not the model."""
    (folder / "model.safetensors.index.json").unlink()
    write_shard(folder / "model.safetensors", {"x": ("BF16", [1], b"ab")})
    code, out, _ = blockdiff("weights", "inspect", folder, "--format", "json")
    assert code == 0 and json.loads(out)["files"] == ["model.safetensors"]


def test_a_pipe_is_not_waited_for(tmp_path: Path, blockdiff: Run) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    code, _, error = blockdiff("weights", "inspect", tmp_path)
    assert code == 2 and "is not a regular file" in error


def test_a_name_that_is_no_text_is_refused(tmp_path: Path, blockdiff: Run) -> None:
    write_shard(tmp_path / "model.safetensors", {"\ud800": ("BF16", [1], b"ab")})
    code, _, error = blockdiff("weights", "inspect", tmp_path)
    assert code == 2 and r"entry of \ud800 is not valid" in error


def test_what_a_terminal_would_obey_is_shown_not_sent(tmp_path: Path, blockdiff: Run) -> None:
    write_shard(tmp_path / "model.safetensors", {"\x1b[2Jx": ("BF16", [2], b"ab")})
    code, _, error = blockdiff("weights", "inspect", tmp_path)
    assert code == 2 and r"\x1b[2Jx has 2 bytes for 4" in error and "\x1b" not in error


def test_files_are_inspected_without_torch(folder: Path) -> None:
    program = (
        "import sys; from blockdiff.cli.main import run; "
        f"code = run(['weights', 'inspect', {str(folder)!r}]); "
        "sys.exit(9 if 'torch' in sys.modules else code)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
