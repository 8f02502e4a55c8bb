"""Weights are checked once, before they are read, and their identity is told."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockdiff.errors import ConfigError
from blockdiff.serving.progress import LoggedProgress
from blockdiff.serving.served_weights import ModelInfoMetric, identify_weights
from blockdiff.serving.settings import Settings, read_settings
from blockdiff.weights import identity as identity_module
from blockdiff.weights.identity import WeightsIdentity
from blockdiff.weights.manifest import read_manifest_with_digest, write_manifest

from . import fakes


@pytest.fixture
def folder(model_dir: Path, tmp_path: Path) -> Path:
    made = tmp_path / "weights"
    shutil.copytree(model_dir, made)
    write_manifest(made)
    return made


@pytest.fixture
def weights(settings: Settings, folder: Path) -> Settings:
    return replace(settings, model=folder)


def change_a_byte(folder: Path) -> None:
    path = folder / "tokenizer.json"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)


def test_verified_by_default_and_said(weights: Settings) -> None:
    said: list[str] = []
    digest = read_manifest_with_digest(weights.model)[1]
    assert identify_weights(weights, said.append) == WeightsIdentity(digest, True)
    assert said == [f"weights {weights.model}: manifest_sha256={digest} (verified)"]


def test_a_changed_byte_stops_the_start_unless_verification_is_off(weights: Settings) -> None:
    change_a_byte(weights.model)
    with pytest.raises(ConfigError, match="tokenizer.json: damaged, or another file"):
        identify_weights(weights, print)
    assert not identify_weights(replace(weights, verify="no"), print).is_verified


def test_what_serve_verified_is_not_read_again(
    weights: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(identity_module, "verify")
    digest = read_manifest_with_digest(weights.model)[1]
    done = replace(weights, verify="done", manifest_sha256=digest)
    assert identify_weights(done, print) == WeightsIdentity(digest, True)
    write_manifest(weights.model, source="another")
    with pytest.raises(ConfigError, match=f"must have {digest}"):
        identify_weights(done, print)


def test_no_manifest_is_said_and_recorded(weights: Settings) -> None:
    (weights.model / "blockdiff-manifest.json").unlink()
    said: list[str] = []
    assert identify_weights(weights, said.append) == WeightsIdentity("none", False)
    assert "has no manifest; to have the weights verified: blockdiff weights manifest" in said[0]
    with pytest.raises(ConfigError, match="has none, must have 0000"):
        identify_weights(replace(weights, manifest_sha256="0" * 64), print)


def test_the_metric_carries_what_is_known(pb_utils: Any) -> None:
    facts = {"model_type": "clover_moe", "dtype": "bfloat16"}
    made = ModelInfoMetric(pb_utils, WeightsIdentity("ab", True), facts)
    (metric,) = made._family.metrics
    assert (made._family.name, metric.value) == ("blockdiff_model_info", 1.0)
    wanted = {"model": "block_diffusion", "manifest_sha256": "ab", "verified": "yes", **facts}
    assert metric.labels == wanted


def test_a_server_without_metrics_serves(pb_utils: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fakes, "MetricFamily")
    ModelInfoMetric(pb_utils, WeightsIdentity("none", False), {})
    assert "no metric blockdiff_model_info" in fakes.Logger.lines[-1]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"BLOCKDIFF_VERIFY": "maybe"}, "BLOCKDIFF_VERIFY: got 'maybe', allowed yes or no"),
        ({"BLOCKDIFF_VERIFY": "done"}, "'done' needs manifest_sha256"),
    ],
)
def test_malformed_settings(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings({}, {"BLOCKDIFF_MODEL": "x", **environment})
    config = {"parameters": {"manifest_sha256": {"string_value": "12"}}}
    with pytest.raises(ConfigError, match="manifest_sha256.*64 hex digits or 'none'"):
        read_settings(config, {"BLOCKDIFF_MODEL": "x"})


def test_progress_is_a_line_every_few_seconds() -> None:
    said: list[str] = []
    times = iter([0.0, 1.0, 6.0, 8.0, 12.0])
    progress = LoggedProgress("loading", said.append, lambda: next(times))
    for done in (1, 6, 8, 12):
        progress(done * 10**9, 20 * 10**9)
    assert said == [
        "loading: 6.00 of 20.00 GB, 1.00 GB/s, 14 s left",
        "loading: 12.00 of 20.00 GB, 1.00 GB/s, 8 s left",
    ]
