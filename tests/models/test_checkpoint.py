"""Loading checkpoints: layouts that work, damage that is reported. Run: pytest tests/models"""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.core import Phase
from blockdiff.errors import ConfigError
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.hybrid import HybridModel

from .checkpoints import TINY, random_tensors, write


def logits(model: HybridModel) -> Tensor:
    caches = model.new_caches(1, 16)
    segments = [Segment(Phase.PREFILL, 0, 0, [3, 4, 5, 6, 7], range(5))]
    model.forward(RoundBatch.from_segments(segments), caches)
    preview = Segment(Phase.PREVIEW, 0, 5, [31] * 8, range(8))
    found: Tensor = model.forward(RoundBatch.from_segments([preview]), caches)
    return found


def fuse(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights with experts stacked, as multimodal checkpoints have them."""
    fused = {n: t for n, t in tensors.items() if ".experts." not in n}
    for layer in range(4):
        own = f"layers.{layer}.mlp.experts."

        def stack(name: str, own: str = own) -> Tensor:
            return torch.stack([tensors[f"{own}{e}.{name}.weight"] for e in range(4)])

        gate_up = torch.cat((stack("gate_proj"), stack("up_proj")), dim=1)
        fused[f"{own}gate_up_proj"] = gate_up
        fused[f"{own}down_proj"] = stack("down_proj")
    return fused


def test_every_layout_gives_the_same_model(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    want = logits(load_model(write(tmp_path / "a", tensors)))
    assert want.isfinite().all()
    nested = "model.language_model."
    for folder in (
        write(tmp_path / "b", tensors, shards=3),
        write(tmp_path / "c", fuse(tensors), prefix=nested, shards=2),
    ):
        torch.testing.assert_close(logits(load_model(folder)), want)


def test_stored_bfloat16_runs_in_float32_and_in_bfloat16(tmp_path: Path) -> None:
    tensors = {name: t.bfloat16() for name, t in random_tensors(TINY).items()}
    stored = load_model(write(tmp_path / "a", tensors))
    exact = load_model(write(tmp_path / "b", {n: t.float() for n, t in tensors.items()}))
    assert torch.equal(logits(stored), logits(exact))
    small = load_model(tmp_path / "a", dtype="bfloat16")
    assert small.embed.rows.dtype == torch.bfloat16
    assert logits(small).dtype == torch.float32


def test_shared_expert_wider_than_a_routed_one(tmp_path: Path) -> None:
    """Cut into slices, the last one filled with zeros: 20 = 8 + 8 + 4."""
    config = {**TINY, "shared_expert_intermediate_size": 20}
    tensors = random_tensors(config)
    want = logits(load_model(write(tmp_path / "a", tensors, config)))
    widened = {**config, "shared_expert_intermediate_size": 24}
    for layer in range(4):
        own = f"layers.{layer}.mlp.shared_expert."
        for name, dims in (
            ("gate_proj", (0, 0, 0, 4)),
            ("up_proj", (0, 0, 0, 4)),
            ("down_proj", (0, 4)),
        ):
            key = f"{own}{name}.weight"
            tensors[key] = torch.nn.functional.pad(tensors[key], dims)
    torch.testing.assert_close(logits(load_model(write(tmp_path / "b", tensors, widened))), want)


def test_tied_head_and_ignored_parts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {**TINY, "tie_word_embeddings": True}
    tensors = random_tensors(config)
    tensors |= {"visual.patch": torch.zeros(2), "lm_head.weight": torch.zeros(3)}
    folder = write(tmp_path, tensors, config)
    with caplog.at_level("INFO"):
        model = load_model(folder)
    assert model.output is model.embed.rows
    assert "1 tensors ignored (model.visual.patch" in caplog.text


def test_parts_beside_the_text_model_are_left_out_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = random_tensors(TINY)
    folder = write(tmp_path, tensors, prefix="model.language_model.")
    named = load_file(folder / "model.safetensors")
    named |= {"mtp.layers.0.fc.weight": torch.zeros(2), "model.visual.blocks.0.b": torch.ones(3)}
    save_file(named, str(folder / "model.safetensors"))
    with caplog.at_level("INFO"):
        load_model(folder)
    assert "2 tensors ignored (model.visual.blocks.0.b, ...)" in caplog.text
    named |= {"model.audio.b": torch.ones(3)}
    save_file(named, str(folder / "model.safetensors"))
    with pytest.raises(ConfigError, match="model.audio.b is unexpected"):
        load_model(folder)


def test_progress_counts_bytes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    tensors = random_tensors(TINY)
    load_model(write(tmp_path, tensors), progress=lambda done, total: seen.append((done, total)))
    size = sum(tensor.numel() * 4 for tensor in tensors.values())
    assert seen[-1] == (size, size) and len(seen) == len(tensors)
    assert sorted(seen) == seen


def test_all_damage_is_listed_in_one_line(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    del tensors["norm.weight"]
    tensors["layers.0.linear_attn.A_log"] = torch.zeros(3)
    tensors["layers.1.surprise"] = torch.zeros(1)
    tensors["embed_tokens.weight"] = torch.zeros(32, 16, dtype=torch.int8)
    with pytest.raises(ConfigError) as caught:
        load_model(write(tmp_path, tensors))
    text = str(caught.value)
    assert "\n" not in text
    for part in (
        "norm.weight is missing",
        "model.layers.0.linear_attn.A_log has shape [3], must be [2]",
        "model.layers.1.surprise is unexpected",
        "model.embed_tokens.weight has dtype I8",
    ):
        assert part in text


def test_wrong_vocabulary_size(tmp_path: Path) -> None:
    folder = write(tmp_path, random_tensors(TINY), {**TINY, "vocab_size": 40})
    with pytest.raises(
        ConfigError, match=r"embed_tokens.weight has shape \[32, 16\], must be \[40"
    ):
        load_model(folder)


def test_every_problem_is_in_the_line_however_many(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_model(write(tmp_path, {"norm.weight": torch.zeros(16)}))
    line = str(caught.value)
    clauses = line.partition(" cannot be loaded: ")[2].split("; ")
    assert all(" is missing" in clause for clause in clauses)
    counts = [re.search(r"\((\d+) tensors\)$", clause) for clause in clauses]
    named = sum(int(count[1]) if count else 1 for count in counts)
    assert named == len(random_tensors(TINY)) - 1
    assert "layers.{0-3}.mlp.experts.{0-3}.up_proj.weight is missing (16 tensors)" in clauses
    assert len(line) < 3000


@pytest.mark.parametrize("keep", [0, 5, 200, -10])
def test_truncated_shard(tmp_path: Path, keep: int) -> None:
    folder = write(tmp_path, random_tensors(TINY), shards=2)
    file = folder / "part-1.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ConfigError, match="part-1.safetensors is damaged or truncated") as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def test_missing_shard_and_bad_index(tmp_path: Path) -> None:
    folder = write(tmp_path, random_tensors(TINY), shards=2)
    (folder / "part-0.safetensors").unlink()
    with pytest.raises(ConfigError, match="part-0.safetensors is missing"):
        load_model(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../part-1.safetensors"}}))
    with pytest.raises(ConfigError, match="may only name files beside it"):
        load_model(folder)
    index.write_text("{}")
    with pytest.raises(ConfigError, match="weight_map must map"):
        load_model(folder)
    index.unlink()
    with pytest.raises(ConfigError, match="neither model.safetensors nor"):
        load_model(folder)


def test_bad_dtype_and_device(tmp_path: Path) -> None:
    folder = write(tmp_path, random_tensors(TINY))
    with pytest.raises(ConfigError, match="dtype is 'int3'; it must be one of"):
        load_model(folder, dtype="int3")
    with pytest.raises(ConfigError, match="device is 'toaster'"):
        load_model(folder, device="toaster")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA device"):
            load_model(folder, device="cuda")
