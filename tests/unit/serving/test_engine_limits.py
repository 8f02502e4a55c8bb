"""Limits that the server sets when the request does not, and callers that cannot be asked."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.calls import script

from . import fakes
from .test_engine_model import ENGINE_CONFIG, ScriptedModel, finished


@pytest.fixture
def start(model_dir: Path, tmp_path: Path, pb_utils: Any) -> Iterator[Callable[..., ScriptedModel]]:
    made: list[ScriptedModel] = []

    def make(**parameters: str) -> ScriptedModel:
        values = {
            "model": str(model_dir),
            "slots": "1",
            "relay_socket": str(tmp_path / "relay.sock"),
            **parameters,
        }
        entries = {key: {"string_value": value} for key, value in values.items()}
        config = json.dumps({**ENGINE_CONFIG, "parameters": entries})
        made.append(ScriptedModel())
        made[-1].initialize({"model_config": config, "model_repository": str(tmp_path)})
        return made[-1]

    yield make
    for model in made:
        model.finalize()


@pytest.mark.parametrize("timeout", [0, 60_000_000])
def test_the_servers_own_deadline(start: Any, ask: Any, timeout: int) -> None:
    """It holds for requests without a deadline and for those with a later one."""
    model = start(default_timeout_seconds="0.3")
    request = ask(script("a", first_delay=20), timeout=timeout, stream=True)
    began = time.monotonic()
    model.execute([request])
    (response,) = finished(request, 3.0)
    assert time.monotonic() - began < 2.0
    assert response.values()["finish_reason"] == [b"timeout"]


def test_a_caller_that_cannot_be_asked_stops_nobody_else(start: Any, ask: Any) -> None:
    class Lost(fakes.Sender):
        def is_cancelled(self) -> bool:
            raise RuntimeError("no such request")

    model = start()
    lost, other = ask(script("a", first_delay=20), stream=True), ask(script("b"), stream=True)
    lost.sender = Lost()
    model.execute([lost])
    # Waits until the slot of the lost one is free.
    model.execute([other])
    assert finished(other)[-1].values()["finish_reason"] == [b"stop"]
    assert finished(lost)[-1].values()["finish_reason"] == [b"cancelled"]
    assert any("a caller was lost" in line for line in fakes.Logger.lines)
