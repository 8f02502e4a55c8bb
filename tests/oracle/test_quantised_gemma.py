"""DiffusionGemma as transformers writes it, quantised. Run: pytest tests/oracle"""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from blockdiff.checkpoint import check_files, load_model
from blockdiff.checkpoint.quantize import quantize_checkpoint
from blockdiff.checkpoint.scheme import Scheme
from blockdiff.cli.main import run
from blockdiff.core import Phase
from blockdiff.errors import ConfigError
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.trunk import LanguageModel

from .test_diffusion_gemma import VOCAB, Case, make_reference

TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_global_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
    "final_logit_softcapping": 30.0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gemma")
    make_reference(Case(TEXT, 8, 4, 4, 0)).save_pretrained(path)
    return path


def logits(model: LanguageModel) -> Tensor:
    caches = model.new_caches(1, 32)
    prefill = Segment(Phase.PREFILL, 0, 0, [3, 4, 5, 6], ())
    preview = Segment(Phase.PREVIEW, 0, 4, [7] * 8, range(8))
    return model.forward(RoundBatch.from_segments([prefill, preview]), caches)


@pytest.mark.parametrize(("kind", "limit"), [("int8", 0.1), ("fp8", 0.3)])
def test_quantised_while_loading(folder: Path, kind: str, limit: float) -> None:
    want = logits(load_model(folder, dtype="bfloat16"))
    error = (logits(load_model(folder, dtype=kind)) - want).norm() / want.norm()
    assert 0 < error < limit
    assert torch.isfinite(want).all()


def test_a_written_copy(folder: Path, tmp_path: Path) -> None:
    assert run(["weights", "quantize", str(folder), str(tmp_path / "b"), "--dtype", "int8"]) == 0
    copy = logits(load_model(tmp_path / "b", dtype="bfloat16"))
    assert torch.equal(copy, logits(load_model(folder, dtype="int8")))


def test_a_written_copy_of_tied_copies(folder: Path, tmp_path: Path) -> None:
    """The encoder's names for the decoder's tensors are left out, its own scalars are not."""
    twice = tmp_path / "a"
    shutil.copytree(folder, twice)
    tensors = load_file(twice / "model.safetensors")
    own = "model.decoder.layers."
    tensors |= {
        name.replace(own, "model.encoder.language_model.layers."): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith(own) and not name.endswith("layer_scalar")
    }
    save_file(tensors, str(twice / "model.safetensors"))
    quantize_checkpoint(twice, tmp_path / "b", Scheme("int8"))
    names = list(load_file(tmp_path / "b" / "model-00001-of-00001.safetensors"))
    passed_over = [note for note in check_files(twice).notes if "is not used" in note]
    assert passed_over and not any("layer_scalar" in note for note in passed_over)
    assert not any("is not used" in note for note in check_files(tmp_path / "b").notes)
    encoder = [name for name in names if ".encoder." in name]
    assert encoder and all(name.endswith("layer_scalar") for name in encoder)
    copy = logits(load_model(tmp_path / "b", dtype="bfloat16"))
    assert torch.equal(copy, logits(load_model(folder, dtype="int8")))


def test_quantised_tied_copies_are_passed_over(folder: Path, tmp_path: Path) -> None:
    quantize_checkpoint(folder, tmp_path / "b", Scheme("int8"))
    want = logits(load_model(tmp_path / "b"))
    file = tmp_path / "b" / "model-00001-of-00001.safetensors"
    tensors = load_file(file)
    packed = {n: t for n, t in tensors.items() if ".layers.0.self_attn.q_proj." in n}
    assert len(packed) == 2
    for name, tensor in packed.items():
        tensors[name.replace(".decoder.", ".encoder.language_model.")] = tensor.clone()
    save_file(tensors, str(file))
    assert torch.equal(logits(load_model(tmp_path / "b")), want)


def test_the_encoder_s_own_scalars_are_checked(folder: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "a"
    shutil.copytree(folder, wrong)
    tensors = load_file(wrong / "model.safetensors")
    name = "model.encoder.language_model.layers.0.layer_scalar"
    save_file(tensors | {name: torch.ones(2)}, str(wrong / "model.safetensors"))
    with pytest.raises(
        ConfigError, match=r"layers\.0\.layer_scalar has shape \[2\], must be \[1\]"
    ):
        check_files(wrong)
