"""postprocessing and unary without a server: deltas, cancel relay, dropped state, joining."""

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockdiff.errors import BlockdiffError, ConfigError
from blockdiff.serving.errors import RequestCancelledError, triton_error, untagged_error
from blockdiff.serving.fields import OUTPUTS
from blockdiff.serving.monitor import EngineMetrics, write_heartbeat
from blockdiff.serving.postprocessing import AnswerTable, PostprocessingModel
from blockdiff.serving.relay import CancelReceiver, CancelRelay
from blockdiff.serving.spec import TextContext
from blockdiff.serving.unary import CancelWatch
from blockdiff.text import Tokenizer

from . import fakes

NAMES = [output.name for output in OUTPUTS]


@pytest.fixture
def relayed(tmp_path: Path) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(tmp_path / "relay.sock"))
    receiver.settimeout(0.3)
    return receiver


@pytest.fixture
def model(
    model_dir: Path, tmp_path: Path, relayed: socket.socket, pb_utils: Any
) -> PostprocessingModel:
    class Model(PostprocessingModel):
        pass

    Model.pb_utils = pb_utils
    parameters = {"model": str(model_dir), "relay_socket": str(tmp_path / "relay.sock")}
    config = {
        "max_batch_size": 1,
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
    made = Model()
    made.initialize({"model_config": json.dumps(config), "model_repository": str(tmp_path)})
    return made


def block(
    ids: list[int], index: int, uid: int = 9, context: TextContext | None = None, **ending: Any
) -> fakes.Request:
    def text(value: str) -> np.ndarray:
        return np.array([[value.encode()]], dtype=np.object_)

    is_final = ending.get("is_final", False)
    arrays = {
        "output_ids": np.array([ids], dtype=np.int32),
        "block_log_probs": np.full((1, len(ids)), -0.5, dtype=np.float32),
        "block_top_log_probs": text(ending.get("top", "")),
        "block_steps": np.array([ending.get("steps", [])], dtype=np.int32),
        "block_index": np.array([[index]], dtype=np.int32),
        "denoise_steps_used": np.array([[2]], dtype=np.int32),
        "threshold_used": np.array([[0.75]], dtype=np.float32),
        "is_final": np.array([[is_final]]),
        "finish_reason": text(ending.get("finish_reason", "stop" if is_final else "")),
        "stop_reason": text(ending.get("stop_reason", "")),
        "num_input_tokens": np.array([[5]], dtype=np.int32),
        "request_uid": np.array([[uid]], dtype=np.uint64),
        "request_context": text(context.model_dump_json() if context else ""),
        "canvas_ids": text(ending.get("canvas_ids", "")),
        "error": text(ending.get("error", "")),
    }
    tensors = [fakes.Tensor(name, array) for name, array in arrays.items()]
    return fakes.Request(tensors, outputs=NAMES)


def test_characters_across_blocks(model: PostprocessingModel, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a👋b")
    texts = []
    for index, token_id in enumerate(ids):
        context = TextContext() if index == 0 else None
        is_last = index == len(ids) - 1
        (response,) = model.execute([block([token_id], index, context=context, is_final=is_last)])
        texts.append(response.values()["text_output"][0].decode())
    assert "".join(texts) == "a👋b"
    assert "\ufffd" not in "".join(texts)
    assert len(model._table) == 0


def test_the_token_that_ends_is_no_text(model: PostprocessingModel, tokenizer: Tokenizer) -> None:
    letter = tokenizer.encode("z")[0]
    request = block(
        [letter, letter], 0, context=TextContext(), is_final=True, stop_reason=str(letter)
    )
    (response,) = model.execute([request])
    assert response.values()["text_output"] == [b"z"]
    assert response.values()["num_output_tokens"] == [2]


def test_conditional_outputs_and_wishes(model: PostprocessingModel, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hi")
    context = TextContext(
        return_log_probs=True, top_logprobs=1, return_step_map=True, return_num_input_tokens=False
    )
    top = json.dumps([[[token, -0.5]] for token in ids])
    asked = {"top": top, "steps": [3] * len(ids)}
    request = block(ids, 0, context=context, is_final=True, **asked)
    (response,) = model.execute([request])
    assert set(response.values()) == set(NAMES) - {"num_input_tokens"}
    assert response.values()["output_log_probs"] == [-0.5] * len(ids)
    assert response.values()["step_map"] == [3] * len(ids)
    (text,) = response.values()["top_log_probs"]
    assert json.loads(text) == [
        [{"id": token, "token": tokenizer.decode([token]), "log_prob": -0.5}] for token in ids
    ]
    (response,) = model.execute([block(ids, 0, context=TextContext(), is_final=True)])
    assert not {"output_log_probs", "top_log_probs", "step_map"} & set(response.values())
    assert response.values()["threshold_used"] == [0.75]


def test_cancelled_block_is_relayed(
    model: PostprocessingModel, relayed: socket.socket, pb_utils: Any
) -> None:
    model.execute([block([5], 0, uid=2**63 + 1, context=TextContext())])
    request = block([6], 1, uid=2**63 + 1)
    request.is_gone = True
    (response,) = model.execute([request])
    assert response.error().code() == pb_utils.TritonError.CANCELLED
    assert relayed.recv(64) == b"u" + (2**63 + 1).to_bytes(8, "little")
    assert len(model._table) == 0
    last = block([], 2, uid=2**63 + 1, is_final=True, finish_reason="cancelled")
    last.is_gone = True
    model.execute([last])
    with pytest.raises(TimeoutError):
        relayed.recv(64)


def test_a_block_of_nobody(model: PostprocessingModel, relayed: socket.socket) -> None:
    (response,) = model.execute([block([5], 3, uid=77)])
    assert response.has_error()
    # Whoever makes blocks that nobody reads is stopped.
    assert relayed.recv(64) == b"u" + (77).to_bytes(8, "little")


def test_idle_states_are_dropped(tokenizer: Tokenizer) -> None:
    table = AnswerTable(tokenizer, idle_seconds=-1.0)
    table.find(1, TextContext().model_dump_json())
    table.find(2, TextContext().model_dump_json())
    assert len(table) == 1
    with pytest.raises(BlockdiffError, match="not running"):
        table.find(1, "")


def test_unary_tells_the_engine_of_a_caller_who_left(
    tmp_path: Path, relayed: socket.socket
) -> None:
    request = fakes.Request()
    relay = CancelRelay(tmp_path / "relay.sock")
    with CancelWatch(request, relay, "abc") as watch:
        with pytest.raises(TimeoutError):
            relayed.recv(64)
        request.is_gone = True
        assert relayed.recv(64) == b"kabc"
        assert relayed.recv(64) == b"kabc"
    assert watch.is_cancelled


def test_an_error_behind_blocks_comes_as_a_tensor(
    model: PostprocessingModel, pb_utils: Any
) -> None:
    model.execute([block([5], 0, context=TextContext())])
    failed = block([], 1, is_final=True, finish_reason="", error="[UNAVAILABLE] it broke")
    (response,) = model.execute([failed])
    assert response.error().message() == "it broke"
    assert response.error().code() == pb_utils.TritonError.UNAVAILABLE
    assert len(model._table) == 0


@pytest.mark.parametrize(
    ("text", "code", "rest"),
    [
        ("in ensemble 'e', [INVALID_ARG] x: got 1", "INVALID_ARG", "in ensemble 'e', x: got 1"),
        ("[request id: 4] Exceeds maximum queue size", "UNAVAILABLE", None),
        ("something else", "INTERNAL", None),
    ],
)
def test_codes_survive_the_inner_call(
    pb_utils: Any, text: str, code: str, rest: str | None
) -> None:
    error = untagged_error(pb_utils, text)
    assert error.code() == getattr(pb_utils.TritonError, code)
    assert error.message() == (rest or text)


def test_unexpected_errors_keep_their_trace_in_the_log(pb_utils: Any) -> None:
    try:
        raise ZeroDivisionError("secret detail")
    except ZeroDivisionError as error:
        described = triton_error(pb_utils, error, "here")
    assert described.message() == (
        "here: internal error (ZeroDivisionError); the server log has the details"
    )
    assert "secret detail" in pb_utils.Logger.lines[0]
    tagged = triton_error(pb_utils, RequestCancelledError("a\nb"), "here", is_tagged=True)
    assert tagged.message() == "[CANCELLED] a b"


def test_relay_ignores_noise_and_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "r.sock"
    seen: list[Any] = []
    receiver = CancelReceiver(path, seen.append, seen.append, lambda: seen.append("drain"))
    receiver.start()
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for datagram in (b"u", b"zzz", b"u" + bytes(7), b"u" + bytes([3] + [0] * 7), b"kkey", b"d"):
        sender.sendto(datagram, str(path))
    sender.close()
    deadline = 50
    while len(seen) < 3 and deadline:
        deadline -= 1
        receiver._is_closing.wait(0.02)
    receiver.close()
    assert seen == [3, "key", "drain"]
    assert not path.exists()


def test_relay_socket_path_is_checked(tmp_path: Path) -> None:
    def receiver(path: Path) -> CancelReceiver:
        return CancelReceiver(path, print, print, print)

    with pytest.raises(ConfigError, match="allowed up to 107"):
        receiver(tmp_path / ("x" * 120))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is no socket"):
        receiver(tmp_path / "file")
    with pytest.raises(ConfigError, match="No such file"):
        receiver(tmp_path / "nowhere" / "r.sock")


def test_metrics_send_only_changes(pb_utils: Any) -> None:
    metrics = EngineMetrics(pb_utils)
    for rounds, free in ((2, 1), (2, 1), (5, 0)):
        metrics.show({"rounds": rounds, "free_slots": free, "forwards_preview": 4})
    rounds_metric = metrics._counters["rounds"]
    assert (rounds_metric.value, rounds_metric.calls) == (5.0, 2)
    assert (metrics._gauges["free_slots"].value, metrics._gauges["free_slots"].calls) == (0.0, 2)
    preview = metrics._counters["forwards_preview"]
    assert preview.labels == {"model": "block_diffusion", "phase": "preview"}


def test_metrics_of_layers_come_with_the_first_counts(pb_utils: Any) -> None:
    metrics = EngineMetrics(pb_utils)
    metrics.show({"rounds": 1})
    assert not metrics._layers
    for imbalance in (1.25, 1.25, 1.5):
        layers = {1: {"imbalance": imbalance, "active": 0.5}, 2: {"imbalance": 2.0, "active": 1.0}}
        metrics.show({"expert_rows": 8, "expert_layers": layers})
    first = metrics._layers["blockdiff_expert_imbalance 1"]
    assert (first.value, first.calls) == (1.5, 2)
    assert first.labels == {"model": "block_diffusion", "layer": "1"}
    assert metrics._layers["blockdiff_experts_active 2"].value == 1.0 and len(metrics._layers) == 4


def test_metrics_are_optional(pb_utils: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("metrics are disabled")

    refuse.GAUGE = refuse.COUNTER = ""  # type: ignore[attr-defined]
    monkeypatch.setattr(pb_utils, "MetricFamily", refuse)
    layers = {0: {"imbalance": 1.0, "active": 1.0}}
    EngineMetrics(pb_utils).show({"rounds": 1, "expert_layers": layers})
    assert "metrics are disabled" in pb_utils.Logger.lines[0]


def test_heartbeat_is_what_the_supervisor_reads(tmp_path: Path, monkeypatch: Any) -> None:
    from blockdiff.embedded.heartbeat import read_heartbeat

    path = tmp_path / "beat.json"
    write_heartbeat(path, {"running": 2, "heartbeat_age_seconds": 3.0, "is_healthy": True})
    beat = read_heartbeat(path)
    assert beat is not None
    assert beat.running == 2
    assert 2.9 < beat.age() < 4.0
    assert [p.name for p in tmp_path.iterdir()] == ["beat.json"]


def test_answers_with_what_ended_them(model: PostprocessingModel, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ab31")
    by_string = {"is_final": True, "stop_reason": "31"}
    ending = {"is_final": True, "stop_reason": str(ids[0])}
    for number, (includes, words, tokens, how, expected) in enumerate(
        [
            (False, ("31",), ids, by_string, "ab"),
            (True, ("31",), ids, by_string, "ab31"),
            (False, (), [*ids, ids[0]], ending, "ab31"),
            (True, (), [*ids, ids[0]], ending, "ab31a"),
        ]
    ):
        context = TextContext(stop_words=words, includes_stop=includes)
        (response,) = model.execute([block(tokens, 0, uid=number, context=context, **how)])
        assert response.values()["text_output"] == [expected.encode()]


def test_a_stop_string_that_reads_like_a_token_id(
    model: PostprocessingModel, tokenizer: Tokenizer
) -> None:
    last = tokenizer.encode("z")[0]
    word = str(last)
    ids = [*tokenizer.encode("a"), *tokenizer.encode(word)]
    for uid, (tokens, expected) in enumerate([(ids, "a"), ([*ids[:-1], last], f"a{word[:-1]}z")]):
        context = TextContext(stop_words=(word,))
        ended = block(tokens, 0, uid=uid, context=context, is_final=True, stop_reason=word)
        assert model.execute([ended])[0].values()["text_output"] == [expected.encode()]
    # an end token of the request
    context = TextContext(stop_words=(word,), stop_token_ids=(last,))
    ended = block([*ids[:-1], last], 0, uid=5, context=context, is_final=True, stop_reason=word)
    assert model.execute([ended])[0].values()["text_output"] == [f"a{word[:-1]}".encode()]


def test_tokens_of_thinking_are_counted_apart(
    model: PostprocessingModel, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("<think>\nabc</think>\n\nd", allow_special=True)
    counts, texts = [], []
    for index, token_id in enumerate(ids):
        context = TextContext(is_chat=True) if index == 0 else None
        is_final = index == len(ids) - 1
        (response,) = model.execute([block([token_id], index, context=context, is_final=is_final)])
        counts.append(response.values()["num_reasoning_tokens"][0])
        texts.append(response.values()["reasoning_output"][0].decode())
    assert (sum(counts), "".join(texts)) == (4, "abc")
    (response,) = model.execute([block(ids, 0, context=TextContext(), is_final=True)])
    assert response.values()["num_reasoning_tokens"] == [0]
