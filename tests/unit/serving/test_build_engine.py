"""The served engine over a real checkpoint: ready only when every kind of round has run."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockdiff.cli.engine_options import optional_bytes
from blockdiff.cli.main import run as run_command
from blockdiff.cli.serve_options import as_parameters
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import ConfigError, EngineDeadError
from blockdiff.scheduler.load import LoadAware
from blockdiff.serving.block_diffusion import build_engine
from blockdiff.serving.settings import Settings, read_settings
from tests.engine.checkpoint import make_checkpoint
from tests.parallel.processes import children_of, is_running


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    model = make_checkpoint(tmp_path / "checkpoint")
    return Settings(model, tmp_path / "relay.sock", slots=3, threads=1, max_context=64)


def test_it_is_warm_before_it_serves(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[int] = []
    warm_up = Engine.warm_up

    def watched(engine: Engine) -> None:
        warm_up(engine)
        warmed.append(engine.free_slots)

    monkeypatch.setattr(Engine, "warm_up", watched)
    wanted: dict[str, Any] = {
        "prefill_token_budget": 128,
        "kv_cache_bytes": 1 << 16,
        "prefix_cache": False,
        "snapshot_bytes": 0,
        "expert_statistics_interval": 0,
    }
    engine = build_engine(replace(settings, **wanted))
    try:
        assert warmed == [3]
        shown = engine.loop.snapshot()
        assert engine.loop.is_healthy and shown["free_slots"] == 3
        got = engine.loop._engine.config
        assert {name: getattr(got, name) for name in wanted} == wanted
        assert 0 < shown["pages_total"] == shown["pages_free"] < 3 * 64
    finally:
        engine.loop.shutdown(0.0)


def test_settings_reach_the_engine(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[EngineConfig] = []
    monkeypatch.setattr(Engine, "warm_up", lambda engine: seen.append(engine.config))
    chosen = replace(settings, truncate_last_block=True, load_aware=True)
    for one in (settings, replace(chosen, load_aware_lowest_threshold=0.6, cuda_graphs=False)):
        build_engine(one).loop.shutdown(0.0)
    assert [config.cuda_graphs for config in seen] == [None, False]
    assert [config.truncate_last_block for config in seen] == [False, True]
    assert [config.load_aware for config in seen] == [None, LoadAware(0.6, 0.5)]


def test_a_model_that_cannot_run_is_never_ready(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("blockdiff.engine.engine.run_round", fail)
    with pytest.raises(EngineDeadError, match="warm-up failed: .*no such kernel"):
        build_engine(settings)


def test_damaged_weights_are_never_served(settings: Settings) -> None:
    shard = settings.model / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(ConfigError, match="damaged or truncated"):
        build_engine(settings)


def test_two_ranks_end_with_the_engine(settings: Settings) -> None:
    before = set(children_of(os.getpid()))
    engine = build_engine(replace(settings, tensor_parallel=2, threads=2, snapshot_interval=64))
    try:
        assert engine.loop._engine.config.snapshot_interval == 64
        (follower,) = set(children_of(os.getpid())) - before
        assert engine.loop.is_healthy and is_running(follower)
    finally:
        engine.loop.shutdown(0.0)
        engine.close()
    assert not is_running(follower)


def test_flags_of_serve_are_parameters_that_the_model_reads() -> None:
    wanted: dict[str, Any] = {
        "kv_cache_bytes": optional_bytes("--kv-cache-size", "2GiB"),
        "prefix_cache": False,
        "snapshot_bytes": optional_bytes("--snapshot-size", "1MB"),
        "snapshot_interval": 64,
        "truncate_last_block": True,
        "deterministic": True,
        "cuda_graphs": False,
        "expert_statistics_interval": 0,
    }
    given = {name: {"string_value": str(v)} for name, v in as_parameters(**wanted).items()}
    settings = read_settings({"parameters": given}, {"BLOCKDIFF_MODEL": "m"})
    assert {name: getattr(settings, name) for name in wanted} == wanted
    assert (wanted["kv_cache_bytes"], wanted["snapshot_bytes"]) == (2 << 30, 10**6)
    assert as_parameters(prefix_cache=None) == {"prefix_cache": None}
    with pytest.raises(ConfigError, match="--kv-cache-size '8': must be a size with a unit"):
        optional_bytes("--kv-cache-size", "8")
    with pytest.raises(ConfigError, match="--kv-cache-size '9999.*: must be a size with a unit"):
        optional_bytes("--kv-cache-size", "9" * 400 + "GiB")
    assert optional_bytes("--snapshot-size", "0") == 0


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        ("kv_cache_bytes", "0", "allowed 1 to"),
        ("kv_cache_bytes", "²", "allowed 1 to"),
        ("kv_cache_bytes", "9" * 5000, "allowed 1 to"),
        ("prefix_cache", "on", "allowed yes or no"),
        ("truncate_last_block", "1", "allowed yes or no"),
        ("cuda_graphs", "auto", "allowed yes or no"),
        ("expert_statistics_interval", "-1", "allowed 0 to"),
        ("tensor_parallel", "0", "allowed 1 to 64"),
        ("tensor_parallel", "two", "allowed 1 to 64"),
        ("tensor_parallel_timeout_seconds", "-1", "up to 86400 seconds"),
        ("truncate_last_block", "true", "allowed yes or no"),
        ("load_aware", "1", "allowed yes or no"),
        ("load_aware_lowest_threshold", "1.5", "allowed 0 to 1"),
        ("load_aware_fewest_steps", "nan", "allowed 0.01 to 1"),
        ("load_aware_fewest_steps", "0.5", "only with load_aware 'yes'"),
    ],
)
def test_settings_are_checked(key: str, text: str, allowed: str) -> None:
    given = {"model": {"string_value": "m"}, key: {"string_value": text}}
    with pytest.raises(ConfigError, match=f"{key}.*{allowed}"):
        read_settings({"parameters": given}, {})


def test_ranks_come_from_the_parameter_or_the_environment() -> None:
    environment = {"BLOCKDIFF_MODEL": "m", "BLOCKDIFF_TENSOR_PARALLEL": "4"}
    assert read_settings({}, environment).tensor_parallel == 4
    given = {"tensor_parallel": {"string_value": "2"}}
    assert read_settings({"parameters": given}, environment).tensor_parallel == 2


@pytest.mark.parametrize(
    "flags",
    [
        ("--deterministic", "--load-aware"),
        ("--no-prefix-cache", "--snapshot-size", "1GiB"),
        ("--no-prefix-cache", "--snapshot-interval", "64"),
    ],
)
def test_flags_that_exclude_each_other_start_nothing(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    assert run_command(["serve", "--model", "nowhere", *flags]) == 2
    error = capsys.readouterr().err
    assert f"{flags[0]}: not together with" in error and len(error.splitlines()) == 1
