"""The served engine over a real checkpoint: ready only when every kind of round has run."""

from pathlib import Path

import pytest

from blockdiff.engine import Engine
from blockdiff.errors import ConfigError, EngineDeadError
from blockdiff.serving.block_diffusion import build_engine
from blockdiff.serving.settings import Settings
from tests.engine.checkpoint import make_checkpoint


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
    engine = build_engine(settings)
    try:
        assert warmed == [3]
        assert engine.loop.is_healthy and engine.loop.snapshot()["free_slots"] == 3
    finally:
        engine.loop.shutdown(0.0)


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
