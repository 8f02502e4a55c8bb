"""DiffusionGemma quantised while loading; written copies are refused. Run: pytest tests/oracle"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.cli.main import run
from blockdiff.core import Phase
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


def test_a_copy_that_could_not_be_read_is_not_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["weights", "quantize", str(folder), str(tmp_path / "b"), "--dtype", "int8"]) == 2
    error = capsys.readouterr().err
    assert "quantization_config" in error and error.count("\n") == 1
    assert not (tmp_path / "b").exists()
