"""The config.pbtxt files follow the field table; unsafe changes to them are refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from blockdiff.errors import ConfigError
from blockdiff.serving import checks
from blockdiff.serving.fields import FIELDS, OUTPUTS
from blockdiff.serving.settings import read_settings

REPOSITORY = Path(__file__).resolve().parents[3] / "model_repository"
PUBLIC = ("preprocessing", "ensemble", "unary")
PATTERN = re.compile(
    r'\{ name: "(\w+)", data_type: (\w+), dims: \[ (-?\d+) \](, optional: true)? \}'
)


def tensors(model: str, section: str) -> dict[str, tuple[str, str, bool]]:
    text = (REPOSITORY / model / "config.pbtxt").read_text()
    block = text[text.index(f"\n{section} [") :]
    block = block[: block.index("\n]")]
    return {m[1]: (m[2], m[3], bool(m[4])) for m in PATTERN.finditer(block)}


@pytest.mark.parametrize("model", PUBLIC)
def test_inputs_follow_the_table(model: str) -> None:
    expected = {
        name: (field.kind.value, field.dims, True)
        for field in FIELDS
        for name in (field.name, *field.aliases)
    }
    assert tensors(model, "input") == expected


@pytest.mark.parametrize("model", ["postprocessing", "ensemble", "unary"])
def test_outputs_follow_the_table(model: str) -> None:
    expected = {output.name: (output.kind.value, output.dims, False) for output in OUTPUTS}
    assert tensors(model, "output") == expected


def test_engine_outputs_are_the_inputs_of_postprocessing() -> None:
    assert tensors("block_diffusion", "output") == tensors("postprocessing", "input")
    assert tensors("preprocessing", "output") == tensors("block_diffusion", "input")


def test_every_ensemble_output_comes_from_the_last_step() -> None:
    text = (REPOSITORY / "ensemble" / "config.pbtxt").read_text()
    last = text[text.index('model_name: "postprocessing"') :]
    produced = re.findall(r'output_map \{ key: "(\w+)" value: "(\w+)" \}', last)
    assert produced == [(output.name, output.name) for output in OUTPUTS]


@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("*/1/model.py")), ids=lambda p: p.parts[-3])
def test_model_files_are_thin(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 12


def test_parameters_are_known_settings() -> None:
    for path in REPOSITORY.glob("*/config.pbtxt"):
        names = re.findall(r'parameters \{ key: "(\w+)"', path.read_text())
        config = {"parameters": {name: {"string_value": ""} for name in names}}
        read_settings(config, {"BLOCKDIFF_MODEL": "x"})


SAFE_POST: dict[str, Any] = {
    "max_batch_size": 1,
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
}
SAFE_ENGINE: dict[str, Any] = {
    **SAFE_POST,
    "dynamic_batching": {},
    "model_transaction_policy": {"decoupled": True},
}


def test_safe_configurations_pass() -> None:
    checks.check_postprocessing(SAFE_POST, REPOSITORY / "postprocessing" / "config.pbtxt")
    checks.check_engine(SAFE_ENGINE, REPOSITORY / "block_diffusion" / "config.pbtxt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_batch_size": 4}, r"line \d+: max_batch_size: got 4, allowed 1"),
        ({"dynamic_batching": {}}, r"config.pbtxt.*: dynamic_batching must not be given"),
        ({"sequence_batching": {}}, "sequence_batching must not"),
        ({"instance_group": []}, r"line \d+: instance_group: got 0 of the default kind"),
        ({"instance_group": [{"count": 1, "kind": "KIND_GPU"}]}, "1 of KIND_GPU"),
        ({"model_transaction_policy": {"decoupled": True}}, "must not be decoupled"),
    ],
)
def test_unsafe_postprocessing(change: dict[str, Any], message: str) -> None:
    path = REPOSITORY / "postprocessing" / "config.pbtxt"
    with pytest.raises(ConfigError, match=message):
        checks.check_postprocessing({**SAFE_POST, **change}, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_batch_size": 8}, "max_batch_size: got 8"),
        ({"dynamic_batching": None}, "dynamic_batching must be given"),
        ({"dynamic_batching": {"preserve_ordering": True}}, "preserve_ordering must be false"),
        ({"model_transaction_policy": {}}, "decoupled: true"),
        ({"instance_group": [{"count": 2, "kind": "KIND_CPU"}]}, "got 2 of KIND_CPU"),
    ],
)
def test_unsafe_engine(change: dict[str, Any], message: str) -> None:
    path = REPOSITORY / "block_diffusion" / "config.pbtxt"
    with pytest.raises(ConfigError, match=message):
        checks.check_engine({**SAFE_ENGINE, **change}, path)


def test_line_numbers_skip_comments(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text("# max_batch_size is 1\nname: 'x'\nmax_batch_size: 2\n")
    assert checks.line_of(path, "max_batch_size") == 3
    assert checks.line_of(path, "nothing") is None


def config_of(**parameters: str) -> dict[str, Any]:
    return {"parameters": {k: {"string_value": v} for k, v in parameters.items()}}


def test_parameters_win_over_the_environment() -> None:
    environment = {"BLOCKDIFF_MODEL": "/env", "BLOCKDIFF_SLOTS": "3"}
    settings = read_settings(config_of(model="/given", slots=""), environment)
    assert (str(settings.model), settings.slots) == ("/given", 3)


@pytest.mark.parametrize(
    ("parameters", "environment", "message"),
    [
        ({}, {}, "BLOCKDIFF_MODEL: not set"),
        ({"slot": "3"}, {"BLOCKDIFF_MODEL": "x"}, "parameters 'slot': unknown"),
        ({"slots": "0"}, {"BLOCKDIFF_MODEL": "x"}, "parameters 'slots': got '0', allowed 1"),
        ({}, {"BLOCKDIFF_MODEL": "x", "BLOCKDIFF_THREADS": "-1"}, "BLOCKDIFF_THREADS: got '-1'"),
        ({}, {"BLOCKDIFF_MODEL": "x", "BLOCKDIFF_SLOT": "3"}, "BLOCKDIFF_SLOT: unknown variable"),
        ({"device": "tpu"}, {"BLOCKDIFF_MODEL": "x"}, "allowed cpu or cuda"),
        ({"drain_seconds": "nan"}, {"BLOCKDIFF_MODEL": "x"}, "drain_seconds"),
    ],
)
def test_malformed_settings_fail_at_start(
    parameters: dict[str, str], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(json.loads(json.dumps(config_of(**parameters))), environment)
