"""``weights quantize``: what it writes, refuses and cleans up. Run: pytest tests/models"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import blockdiff.checkpoint.quantize as module
from blockdiff.checkpoint import load_model
from blockdiff.cli.main import run
from blockdiff.cli.sizes import size_text
from blockdiff.config import parse_config
from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.expert_layout import FUSED, ONE_BY_ONE
from blockdiff.models.registry import FAMILIES
from blockdiff.models.trunk import LanguageModel
from blockdiff.weights.headers import read_headers
from blockdiff.weights.manifest import (
    MANIFEST,
    read_manifest,
    read_manifest_with_digest,
    write_manifest,
)
from blockdiff.weights.verify import verify

from .decoding import generate
from .quantized_checkpoints import CONFIGS

DEMO = Path(__file__).resolve().parents[2] / "demo" / "checkpoint"
KINDS = {"int8": [], "int4": ["--group-size", "32"], "fp8": []}


def write_source(folder: Path, family: str = "clover_moe", is_fused: bool = False) -> Path:
    folder.mkdir()
    torch.manual_seed(0)
    shapes = FAMILIES[family].shapes(
        parse_config(CONFIGS[family]), FUSED if is_fused else ONE_BY_ONE
    )
    tensors = {
        name if name.startswith("lm_head") else "model." + name: torch.randn(shape).bfloat16() * 0.3
        for name, shape in shapes.items()
    }
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(CONFIGS[family]))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "pytorch_model.bin").write_text("other weights")
    return folder


def quantize(source: Path, target: Path, kind: str) -> int:
    words = ["weights", "quantize", str(source), str(target), "--dtype", kind]
    return run([*words, *KINDS[kind]])


def logits(model: LanguageModel) -> Tensor:
    caches = model.new_caches(1, 16)
    segment = Segment(Phase.PREFILL, 0, 0, [3, 4, 5, 6], range(4), 4)
    return model.forward(RoundBatch.from_segments([segment]), caches)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_fused", [False, True])
def test_the_copy_is_what_quantising_while_loading_gives(
    tmp_path: Path, kind: str, is_fused: bool
) -> None:
    source = write_source(tmp_path / "a", is_fused=is_fused)
    assert quantize(source, tmp_path / "b", kind) == 0
    copy = logits(load_model(tmp_path / "b", dtype="bfloat16"))
    if kind != "int4":  # which takes the largest group that fits when it is not told one
        assert torch.equal(copy, logits(load_model(source, dtype=kind)))
    exact = logits(load_model(source))
    error = (logits(load_model(tmp_path / "b")) - exact).norm() / exact.norm()
    assert 0 < error < {"int8": 0.05, "fp8": 0.25, "int4": 0.6}[kind]


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("family", CONFIGS)
def test_every_family(tmp_path: Path, family: str, kind: str) -> None:
    source = write_source(tmp_path / "a", family)
    assert quantize(source, tmp_path / "b", kind) == 0
    want = load_model(source, dtype=kind)
    copy = load_model(tmp_path / "b", dtype="bfloat16")
    assert torch.equal(logits(copy), logits(want))
    assert generate(copy) == generate(want)


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_in_groups(tmp_path: Path, family: str) -> None:
    source = write_source(tmp_path / "a", family)
    assert quantize(source, tmp_path / "b", "int4") == 0
    exact, copy = load_model(source), load_model(tmp_path / "b")
    error = (logits(copy) - logits(exact)).norm() / logits(exact).norm()
    assert 0 < error < 0.6
    narrow = load_model(tmp_path / "b", dtype="bfloat16")
    assert [len(tokens) for tokens in generate(narrow)] == [len(t) for t in generate(exact)]


def test_the_file_layout(tmp_path: Path) -> None:
    source = write_source(tmp_path / "a")
    assert quantize(source, tmp_path / "b", "int4") == 0
    declared = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    assert declared["quant_method"] == "compressed-tensors"
    assert declared["format"] == "pack-quantized"
    tensors = load_file(tmp_path / "b" / "model-00001-of-00001.safetensors")
    name = "model.layers.1.self_attn.q_proj"
    packed, scale = tensors[name + ".weight_packed"], tensors[name + ".weight_scale"]
    assert (packed.dtype, packed.shape) == (torch.int32, (128, 8))
    assert (scale.dtype, scale.shape) == (torch.bfloat16, (128, 2))
    assert tensors[name + ".weight_shape"].tolist() == [128, 64]
    original = load_file(source / "model.safetensors")
    word, places = int(packed[5, 3]) & 0xFFFFFFFF, range(8)
    numbers = torch.tensor([float((word >> 4 * place & 15) - 8) for place in places])
    error = numbers * scale[5, 0].float() - original[name + ".weight"][5, 24:32].float()
    assert error.abs().max() <= scale[5, 0].float()
    kept = [n for n in original if n.endswith((".weight", "_log")) and n in tensors]
    for part in ("embed_tokens", "lm_head", "mlp.gate", "shared_expert_gate", "in_proj_a", "norm"):
        assert any(part in n for n in kept), part
    assert all(torch.equal(tensors[n], original[n]) for n in kept)


def test_bytes_are_the_same_every_time_and_shards_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path / "a")
    monkeypatch.setattr(module, "SHARD_BYTES", 30_000)
    for name in ("b", "c"):
        assert quantize(source, tmp_path / name, "int4") == 0
    files = sorted(p.name for p in (tmp_path / "b").iterdir() if p.name != MANIFEST)
    assert sum(name.endswith(".safetensors") for name in files) > 2
    for name in files:
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()
    assert load_model(tmp_path / "b").info.vocab_size == 32


def test_other_files_and_the_manifest(tmp_path: Path) -> None:
    source = write_source(tmp_path / "a")
    write_manifest(source, source="https://example.org/m", revision="v1")
    assert quantize(source, tmp_path / "b", "int8") == 0
    names = {path.name for path in (tmp_path / "b").iterdir()}
    assert "tokenizer.json" in names and "pytorch_model.bin" not in names
    assert verify(tmp_path / "b").is_good
    made = read_manifest(tmp_path / "b")
    assert (made.source, made.revision) == ("https://example.org/m", "v1")
    assert made.initialised is not None and "quantised to int8" in made.initialised
    assert len(made.initialised.split()[-1]) == 64


def refuses(capsys: pytest.CaptureFixture[str], words: list[str], text: str) -> None:
    assert run(["weights", "quantize", *words]) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1, error


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write_source(tmp_path / "a"), tmp_path / "b"
    pair = [str(source), str(target)]
    refuses(capsys, [*pair, "--dtype", "int8", "--group-size", "32"], "only int4 has groups")
    refuses(capsys, [*pair, "--dtype", "int4", "--group-size", "48"], "48 must be one of [32, 64")
    wide = [*pair, "--dtype", "int4", "--group-size", "128"]
    refuses(capsys, wide, "columns, which group size 128 does not divide; use")
    refuses(capsys, [*pair, "--dtype", "int3"], "int3")
    refuses(capsys, [str(tmp_path / "x"), str(target), "--dtype", "int8"], "x: not found")
    inside = str(source / "int8")
    refuses(capsys, [str(source), inside, "--dtype", "int8"], "lies in the source folder")
    assert not target.exists()
    assert quantize(source, target, "int8") == 0
    refuses(capsys, [*pair, "--dtype", "int8"], "b: is not empty; give a new folder")
    again = [str(target), str(tmp_path / "c"), "--dtype", "int8"]
    refuses(capsys, again, "b: is already quantised")
    file = str(source / "config.json")
    refuses(capsys, [str(source), file, "--dtype", "int8"], "is a file; give a new folder")


def test_nothing_is_left_of_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path / "a")
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    tensors[name][3, 3] = float("nan")
    save_file(tensors, str(source / "model.safetensors"))
    pair = [str(source), str(tmp_path / "b"), "--dtype", "int8"]
    refuses(capsys, pair, f"{name} holds NaN or infinity")
    tensors[name][3, 3] = 0.0
    tensors["model.norm.weight"][2] = float("inf")
    save_file(tensors, str(source / "model.safetensors"))
    refuses(capsys, pair, "model.norm.weight holds NaN or infinite values")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    tensors["model.norm.weight"][2] = 0.0
    save_file(tensors, str(source / "model.safetensors"))
    monkeypatch.setattr(module.ShardWriter, "write", full)
    refuses(capsys, pair, "b: cannot be written (No space left on device)")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_empty_folder_may_be_there(tmp_path: Path) -> None:
    source = write_source(tmp_path / "a")
    (tmp_path / "b").mkdir()
    assert quantize(source, tmp_path / "b", "fp8") == 0
    assert (tmp_path / "b" / MANIFEST).is_file()


def test_files_have_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    source = write_source(tmp_path / "a")
    before = os.umask(0o027)
    try:
        assert quantize(source, tmp_path / "b", "int4") == 0
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "b").iterdir()}
    assert len(modes) >= 5 and set(modes.values()) == {0o640}, modes


@pytest.mark.parametrize(("family", "group"), [("clover_moe", 32), ("demo", 64)])
def test_int4_takes_the_largest_group_that_fits_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str, group: int
) -> None:
    source = DEMO if family == "demo" else write_source(tmp_path / "a", family)
    target = tmp_path / "b"
    assert run(["weights", "quantize", str(source), str(target), "--dtype", "int4"]) == 0
    config = json.loads((target / "config.json").read_text())
    declared = config["quantization_config"]["config_groups"]["group_0"]["weights"]
    assert declared["group_size"] == group
    said = capsys.readouterr().out.splitlines()[-1]
    sizes = [sum(t.size for t in read_headers(folder)) for folder in (source, target)]
    before, after = map(size_text, sizes)
    digest = read_manifest_with_digest(target)[1]
    assert f"groups of {group} written, weights {before} -> {after}" in said
    assert said.endswith(f"manifest SHA-256 {digest}")
