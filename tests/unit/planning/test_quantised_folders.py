"""Folders whose projections are stored quantised, counted as what they stand for."""

from pathlib import Path

import pytest

from blockdiff.cli.main import run
from blockdiff.planning import read_model
from tests.models.quantized_checkpoints import CONFIGS, FORMATS, write_pair


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
    assert "dtype: bf16 is not possible" in capsys.readouterr().err
