"""Folders whose projections are stored quantised, counted as what they stand for."""

from dataclasses import replace
from pathlib import Path

import pytest

from blockdiff.checkpoint import load_model
from blockdiff.checkpoint.quantize import quantize_checkpoint
from blockdiff.checkpoint.scheme import Scheme
from blockdiff.checkpoint.sizes import model_tensors, tensor_bytes
from blockdiff.cli.main import run
from blockdiff.config import read_json
from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.planning import Setup, make_plan, needs, read_model
from blockdiff.planning.units import GIB
from tests.models.quantized_checkpoints import CONFIGS, FORMATS, write_pair
from tests.unit.planning.families import write_random

DEMO = Path(__file__).resolve().parents[3] / "demo" / "checkpoint"


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("name", FORMATS)
def test_packed_parameters_are_counted_one_by_one(tmp_path: Path, family: str, name: str) -> None:
    quantised, dense = (read_model(path) for path in write_pair(tmp_path, family, FORMATS[name]))
    assert quantised.has_headers and quantised.parts == dense.parts
    assert quantised.stored_kind == name.split("-")[0].replace("gptq", "int4")
    assert dense.stored_kind is None


def test_a_stored_kind_is_the_plan_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = write_pair(tmp_path, "sdar", FORMATS["int4"])
    words = ["plan", "--model", str(folder), "--device-memory", "2GiB"]
    assert run(words) == 0
    assert "weights in int4" in capsys.readouterr().out
    assert run([*words, "--dtype", "bf16"]) == 2
    assert "--dtype bf16: not possible" in capsys.readouterr().err


def loaded_bytes(folder: Path, dtype: str) -> int:
    """All tensors of a model in use: 4-bit weights are reordered by the first call."""
    model = load_model(folder, dtype=dtype)
    caches = model.new_caches(1, 64)
    model.forward(
        RoundBatch.from_segments([Segment(Phase.PREFILL, 0, 0, [3] * 40, range(4), 4)]), caches
    )
    return sum(map(tensor_bytes, model_tensors(model)))


@pytest.mark.parametrize(
    ("dtype", "group"), [("int4", 32), ("int4", 64), ("int8", None), ("fp8", None)]
)
def test_the_demo_s_copy_takes_what_is_planned(
    tmp_path: Path, dtype: str, group: int | None
) -> None:
    quantize_checkpoint(DEMO, tmp_path / "copy", Scheme(dtype, group))
    planned = needs.weight_bytes(read_model(tmp_path / "copy"), dtype, 1)
    assert loaded_bytes(tmp_path / "copy", "bfloat16") == pytest.approx(planned, rel=0.02)


@pytest.mark.parametrize("dtype", ["int4", "int8", "fp8"])
def test_quantising_the_demo_while_loading_takes_what_is_planned(dtype: str) -> None:
    planned = needs.weight_bytes(read_model(DEMO), dtype, 1)
    assert loaded_bytes(DEMO, dtype) == pytest.approx(planned, rel=0.02)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_takes_what_is_planned(tmp_path: Path, family: str, name: str) -> None:
    folder, _ = write_pair(tmp_path, family, FORMATS[name])
    found = read_model(folder)
    assert found.stored_kind is not None
    planned = needs.weight_bytes(found, found.stored_kind, 1)
    assert loaded_bytes(folder, "bfloat16") == pytest.approx(planned, rel=0.1)


@pytest.mark.parametrize("group", [32, 128])
def test_a_config_alone_says_as_much_as_the_headers(tmp_path: Path, group: int) -> None:
    config = {**read_json(DEMO / "config.json"), "hidden_size": 256, "moe_intermediate_size": 128}
    config |= {"shared_expert_intermediate_size": 128}
    dense = write_random(tmp_path / "dense", config)
    quantize_checkpoint(dense, tmp_path / "copy", Scheme("int4", group))
    both = [read_model(path) for path in (tmp_path / "copy", tmp_path / "copy" / "config.json")]
    assert [found.has_headers for found in both] == [True, False]
    assert needs.weight_parts(both[0], "int4") == needs.weight_parts(both[1], "int4")


def test_no_smaller_dtype_is_named_for_what_is_quantised_already(tmp_path: Path) -> None:
    folder, dense = write_pair(tmp_path, "sdar", FORMATS["int8"])
    found, other = read_model(folder), read_model(dense)
    setup = Setup(GIB, "int8", context=64, slots=1, block_length=4, headroom=0, device="cpu")
    needed = make_plan(found, setup).demand.total
    tight = replace(setup, device_memory=needed - 100)
    assert not any("--dtype" in change for change in make_plan(found, tight).changes)
    wide = replace(setup, dtype="bf16")
    tight = replace(wide, device_memory=make_plan(other, wide).demand.total - 100)
    assert any("--dtype" in change for change in make_plan(other, tight).changes)
