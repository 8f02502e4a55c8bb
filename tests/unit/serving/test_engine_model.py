"""block_diffusion without a server: admission, finals, cancellation, deadlines, failures."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockdiff.engine import EngineConfig, EngineLoop
from blockdiff.serving.block_diffusion import BlockDiffusionModel, ServedEngine
from blockdiff.serving.drain import drain
from blockdiff.serving.relay import CancelRelay
from blockdiff.serving.settings import Settings
from blockdiff.text import Tokenizer
from tests.server.calls import script
from tests.server.fake_engine import FakeEngine

from . import fakes

FINAL = fakes.TRITONSERVER_RESPONSE_COMPLETE_FINAL
ENGINE_CONFIG = {
    "max_batch_size": 1,
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
    "dynamic_batching": {},
    "model_transaction_policy": {"decoupled": True},
}


class ScriptedModel(BlockDiffusionModel):
    pb_utils = fakes

    def build_engine(self, settings: Settings) -> ServedEngine:
        engine = FakeEngine(Tokenizer.load(settings.model), EngineConfig(max_slots=settings.slots))
        loop = EngineLoop(engine)  # type: ignore[arg-type]
        loop.start()
        return ServedEngine(loop, engine.validate)


@pytest.fixture
def model(model_dir: Path, tmp_path: Path, pb_utils: Any) -> Iterator[ScriptedModel]:
    parameters = {
        "model": str(model_dir),
        "slots": "1",
        "relay_socket": str(tmp_path / "relay.sock"),
        "heartbeat_file": str(tmp_path / "heartbeat.json"),
        "drain_seconds": "5",
    }
    config = {
        **ENGINE_CONFIG,
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
    made = ScriptedModel()
    arguments = {"model_config": json.dumps(config), "model_repository": str(tmp_path)}
    made.initialize(arguments)
    yield made
    made.finalize()
    assert not (tmp_path / "relay.sock").exists()
    assert not (tmp_path / "heartbeat.json").exists()


def finished(request: fakes.Request, seconds: float = 5.0) -> list[fakes.InferenceResponse]:
    assert request.sender.done.wait(seconds), "no final response"
    time.sleep(0.15)
    assert request.sender.misuse == []
    assert [flags for _, flags in request.sender.sent][-1] == FINAL
    assert all(flags == 0 for _, flags in request.sender.sent[:-1])
    assert request.sender.threads == {"blockdiff-dispatch"}
    return [response for response, _ in request.sender.sent]


def error_of(request: fakes.Request) -> tuple[int, str]:
    error = finished(request)[-1].error()
    assert error is not None
    return error.code(), error.message()


def test_last_block_carries_the_flag(model: ScriptedModel, ask: Any) -> None:
    request = ask(script("a b c d", block=2), stream=True)
    model.execute([request])
    values = [response.values() for response in finished(request)]
    assert len(values) > 2
    assert [v["block_index"][0] for v in values] == list(range(len(values)))
    assert [v["is_final"][0] for v in values] == [False] * (len(values) - 1) + [True]
    assert [bool(v["request_context"][0]) for v in values] == [True] + [False] * (len(values) - 1)
    assert values[-1]["finish_reason"] == [b"stop"]
    assert [v["threshold_used"][0] for v in values] == [0.875] + [0.75] * (len(values) - 1)
    assert len({v["request_uid"][0] for v in values}) == 1


def test_without_stream_one_response(model: ScriptedModel, ask: Any, tokenizer: Tokenizer) -> None:
    request = ask(script("a b c d", block=2), stream=False)
    model.execute([request])
    (response,) = finished(request)
    values = response.values()
    assert tokenizer.decode(values["output_ids"]) == "a b c d"
    assert values["denoise_steps_used"][0] == 2 * (values["block_index"][0] + 1)
    assert values["threshold_used"] == [0.75]
    assert len(values["block_log_probs"]) == len(values["output_ids"])


def test_execute_waits_for_a_slot(model: ScriptedModel, ask: Any) -> None:
    first = ask(script("a b", first_delay=0.4, block=9), stream=True)
    second = ask(script("c d", block=9), stream=True)
    model.execute([first])
    began = time.monotonic()
    model.execute([second])
    assert 0.2 < time.monotonic() - began < 2.0
    finished(first)
    finished(second)


@pytest.mark.parametrize("reason", ["cancel", "deadline", "shutdown"])
def test_waiting_ends_without_a_slot(
    model: ScriptedModel, ask: Any, pb_utils: Any, reason: str
) -> None:
    running = ask(script("a", first_delay=1.0), stream=True)
    waiting = ask(script("b"), timeout=300_000 if reason == "deadline" else 0, stream=True)
    model.execute([running])
    thread = threading.Thread(target=model.execute, args=([waiting],))
    thread.start()
    time.sleep(0.15)
    stopper = None
    if reason == "cancel":
        waiting.is_gone = True
    elif reason == "shutdown":
        stopper = threading.Thread(target=model._loop.shutdown, args=(5.0,))
        stopper.start()
    thread.join(0.8)
    assert not thread.is_alive()
    code, text = error_of(waiting)
    expected = (
        pb_utils.TritonError.CANCELLED if reason == "cancel" else fakes.TritonError.UNAVAILABLE
    )
    assert code == expected
    assert reason == "cancel" or "retry" in text
    finished(running)
    if stopper is not None:
        stopper.join()


def test_direct_cancel_is_polled(model: ScriptedModel, ask: Any) -> None:
    request = ask(script("a", first_delay=30), stream=True)
    model.execute([request])
    request.sender.is_gone = True
    (response,) = finished(request, 1.0)
    assert response.values()["finish_reason"] == [b"cancelled"]
    assert model._loop.snapshot()["free_slots"] == 1


@pytest.mark.parametrize("by", ["uid", "key"])
def test_relayed_cancel(model: ScriptedModel, ask: Any, by: str) -> None:
    request = ask(script("a b c d", block=1, delay=0.3), key="k1", stream=True)
    model.execute([request])
    relay = CancelRelay(model._settings.relay_socket)
    if by == "key":
        relay.cancel_key("k1")
    else:
        while not request.sender.sent:
            time.sleep(0.02)
        relay.cancel_uid(request.sender.sent[0][0].values()["request_uid"][0])
    relay.close()
    assert finished(request, 0.9)[-1].values()["finish_reason"] == [b"cancelled"]
    assert model._uid_of_key == {} and model._gone == set()


def test_deadline_while_running(model: ScriptedModel, ask: Any) -> None:
    request = ask(script("a b c d e", block=1, delay=0.1), timeout=250_000, stream=True)
    model.execute([request])
    values = [response.values() for response in finished(request)]
    assert values[-1]["finish_reason"] == [b"timeout"]
    assert len(values) >= 2


def test_deadline_counts_from_arrival(model: ScriptedModel, ask: Any) -> None:
    late = time.monotonic() - 10
    request = ask(script("a", first_delay=5), timeout=10_200_000, received_at=late, stream=True)
    model.execute([request])
    finished(request, 1.0)


def test_bad_requests_take_no_slot(model: ScriptedModel, ask: Any, pb_utils: Any) -> None:
    request = ask(script("x"), block_length=33)
    model.execute([request])
    assert error_of(request) == (
        pb_utils.TritonError.INVALID_ARG,
        "block_length: 33 is out of range; allowed are 1 to 32",
    )
    empty = fakes.Request()
    model.execute([empty])
    assert "input_ids: missing" in error_of(empty)[1]
    tagged = ask(script("x"), key="k", block_length=33)
    model.execute([tagged])
    assert error_of(tagged)[1].startswith("[INVALID_ARG] block_length: 33")
    assert model._loop.snapshot()["free_slots"] == 1


def test_a_failing_round(model: ScriptedModel, ask: Any, pb_utils: Any) -> None:
    request = ask(script("a b", block=1, fail_at=0), stream=True)
    model.execute([request])
    code, text = error_of(request)
    assert code == pb_utils.TritonError.UNAVAILABLE
    assert text == "scripted failure; retry after about 1 s"
    # Behind blocks it must not overtake, so it goes their way.
    request = ask(script("a b", block=1, fail_at=1), stream=True)
    model.execute([request])
    first, last = (response.values() for response in finished(request))
    assert first["error"] == [b""]
    assert last["error"] == [b"[UNAVAILABLE] scripted failure; retry after about 1 s"]
    assert (last["block_index"], last["is_final"], last["num_input_tokens"][0] > 0) == (
        [1],
        [True],
        True,
    )


def test_a_dead_engine_answers_everybody(model: ScriptedModel, ask: Any, pb_utils: Any) -> None:
    request = ask(script("a", die_at=0), stream=True)
    model.execute([request])
    assert error_of(request)[0] == pb_utils.TritonError.UNAVAILABLE
    assert not model.is_ready()
    late = ask(script("b"))
    model.execute([late])
    code, text = error_of(late)
    assert code == pb_utils.TritonError.UNAVAILABLE
    assert "the engine has died" in text
    beat = model._settings.heartbeat_file
    assert beat is not None
    time.sleep(1.2)
    assert json.loads(beat.read_text())["monotonic"] == 0.0


def test_an_unreachable_caller_frees_the_slot(model: ScriptedModel, ask: Any) -> None:
    request = ask(script("a b c", block=1, delay=0.1), stream=True)
    request.sender.fail_with = RuntimeError("gone")
    model.execute([request])
    deadline = time.monotonic() + 2
    while model._loop.snapshot()["free_slots"] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert any("a response was not sent" in line for line in fakes.Logger.lines)


def test_drain_refuses_newcomers_and_waits(model: ScriptedModel, ask: Any) -> None:
    request = ask(script("a b c", block=1, delay=0.3), stream=True)
    model.execute([request])
    settings = model._settings
    assert settings.heartbeat_file is not None
    emptied: list[bool] = []
    arguments = (settings.relay_socket, settings.heartbeat_file, 15.0)
    drainer = threading.Thread(target=lambda: emptied.append(drain(*arguments)))
    drainer.start()
    time.sleep(0.4)
    late = ask(script("late"))
    model.execute([late])
    assert "shutting down; retry after about 1 s" in error_of(late)[1]
    assert not model.is_ready()
    assert finished(request)[-1].values()["finish_reason"] == [b"stop"]
    drainer.join()
    assert emptied == [True]


def test_drain_gives_up_on_a_silent_engine(tmp_path: Path) -> None:
    assert drain(tmp_path / "none.sock", tmp_path / "none.json", 0.3) is False


def test_a_start_that_fails_is_one_line(model_dir: Path, tmp_path: Path, pb_utils: Any) -> None:
    config = {**ENGINE_CONFIG, "max_batch_size": 2}
    config["parameters"] = {"model": {"string_value": str(model_dir)}}
    arguments = {"model_config": json.dumps(config), "model_repository": str(tmp_path)}
    with pytest.raises(pb_utils.TritonModelException, match="max_batch_size: got 2, allowed 1"):
        ScriptedModel().initialize(arguments)
