"""Models that multiply int8 weights with int8 activations (dtype w8a8). Run: pytest tests/models"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.checkpoint.load import check_dtype, load_with_report
from blockdiff.checkpoint.sizes import model_parts
from blockdiff.cli.main import run
from blockdiff.errors import ConfigError
from blockdiff.models.layers.int8 import Int8Experts, Int8Linear
from blockdiff.models.layers.quantized import ListedExperts, QuantizedLinear
from blockdiff_kernels.implementation import using
from blockdiff_kernels.int8_rows import cpu

from .quantized_checkpoints import CONFIGS, FORMATS, write_pair
from .test_quantized_formats import logits

DEMO = Path(__file__).parents[2] / "demo" / "checkpoint"


def kinds(model: object, wanted: type) -> set[type]:
    return {type(part) for part in model_parts(model) if isinstance(part, wanted)}


def relative(found: Tensor, want: Tensor) -> float:
    return float((found.float() - want).norm() / want.norm())


@pytest.mark.parametrize("family", CONFIGS)
def test_a_model_is_near_its_int8_weights(tmp_path: Path, family: str) -> None:
    stored, dense = write_pair(tmp_path, family, FORMATS["int8"])
    want = logits(load_model(dense))
    weights_only = relative(logits(load_model(stored, dtype="bfloat16")), want)
    model = load_model(stored, dtype="w8a8")
    assert kinds(model, QuantizedLinear) == {Int8Linear}
    found = logits(model)
    # more than rounding to bfloat16 does, and not much
    assert weights_only < relative(found, want) <= weights_only + 0.03
    with using("reference"):
        plain = logits(load_model(stored, dtype="w8a8"))
    assert relative(found, plain.float()) <= max(weights_only, 0.02)


def test_weights_are_quantised_while_loading(tmp_path: Path) -> None:
    _, dense = write_pair(tmp_path, "clover_moe", FORMATS["int8"])
    want, weights_only, found = (
        logits(load_model(dense, dtype=dtype)).float() for dtype in ("bfloat16", "int8", "w8a8")
    )
    assert not torch.equal(found, weights_only)
    assert relative(found, want) <= relative(weights_only, want) + 0.03


@pytest.mark.parametrize(
    ("family", "kind"), [("diffusion_gemma", Int8Experts), ("clover_moe", ListedExperts)]
)
def test_experts_of_one_width_share_their_rows(tmp_path: Path, family: str, kind: type) -> None:
    """A shared expert of another width keeps experts one by one."""
    stored, _ = write_pair(tmp_path, family, FORMATS["int8"])
    assert kinds(load_model(stored, dtype="w8a8"), ListedExperts) == {kind}


@pytest.mark.parametrize("name", ["int4", "fp8-block", "gptq"])
def test_other_weights_are_refused(tmp_path: Path, name: str) -> None:
    stored, _ = write_pair(tmp_path, "clover_moe", FORMATS[name])
    with pytest.raises(ConfigError, match=r"'w8a8', which needs int8 weights with one scale") as no:
        load_model(stored, dtype="w8a8")
    assert "\n" not in str(no.value)


def test_gpus_and_triton_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"w8a8.*device cuda:0, quantized_linear=triton.*int8"):
        check_dtype("w8a8", torch.device("cuda:0"))
    with using("reference"), pytest.raises(ConfigError, match=r"device cuda.*=reference"):
        check_dtype("w8a8", torch.device("cuda"))
    with using("quantized_linear=triton"), pytest.raises(ConfigError, match=r"device cpu.*=triton"):
        check_dtype("w8a8", torch.device("cpu"))
    assert check_dtype("int8", torch.device("cuda")) == ()


def test_a_processor_without_the_instructions_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, _ = write_pair(tmp_path, "sdar", FORMATS["int8"])
    want = logits(load_model(stored, dtype="w8a8"))
    monkeypatch.setattr(cpu, "is_exact", lambda: False)
    loaded = load_with_report(stored, dtype="w8a8")
    assert any("no AVX-512 VNNI" in note for note in loaded.notes)
    torch.testing.assert_close(logits(loaded.model), want, atol=0.02, rtol=0.02)


def test_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "--model", str(DEMO), "--dtype", "w8a8", "--max-tokens", "16"]
    words += ["--messages", '[{"role": "user", "content": "sort 52 7 31"}]']
    with using("auto"):
        assert run(words) == 0
        assert "7 31 52" in capsys.readouterr().out
        assert run([*words, "--kernels", "quantized_linear=triton"]) == 2
    assert "dtype is 'w8a8', for which there are no kernels" in capsys.readouterr().err
