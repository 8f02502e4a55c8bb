"""Blocks stay in order under load; whoever gives up frees the slot within one block."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tritonclient.grpc as grpcclient

from blockdiff.embedded import TritonServer

from .calls import (
    HttpStream,
    Stream,
    generate,
    inputs,
    metric,
    script,
    stream_all,
    wait_until,
)

pytestmark = pytest.mark.server

BLOCK_SECONDS = 0.4
SLACK_SECONDS = 1.0
LONG = "sort the words " * 40


def free(server: TritonServer) -> float:
    return metric(server, "blockdiff_free_slots")


def is_idle(server: TritonServer, slots: int = 2) -> bool:
    return free(server) == slots and metric(server, "blockdiff_waiting_requests") == 0


def mixed_requests(count: int) -> list[tuple[str, dict[str, Any]]]:
    rng = random.Random(5)
    made = []
    for number in range(count):
        words = rng.choices(["hello", "world", "你好", "👋🏽", "sort", "é"], k=rng.randint(1, 30))
        text = f"{number}: " + " ".join(words)
        behaviour = {"block": rng.randint(1, 9), "delay": rng.choice([0, 0, 0.01, 0.05])}
        is_streamed = rng.random() < 0.7
        made.append((text, {"text_input": script(text, **behaviour), "stream": is_streamed}))
    return made


def test_order_of_200_concurrent_mixed_requests(wide: TritonServer) -> None:
    requests = mixed_requests(200)
    grpc_part, http_part, unary_part = requests[:160], requests[160:190], requests[190:]

    def over_http(values: dict[str, Any]) -> list[dict[str, Any]]:
        return list(HttpStream(wide, {**values, "stream": True}).events())

    def over_unary(values: dict[str, Any]) -> list[dict[str, Any]]:
        status, answer = generate(wide, {**values, "stream": False}, "unary")
        assert status == 200, answer
        return [answer]

    with ThreadPoolExecutor(40) as pool, Stream(wide) as first, Stream(wide) as second:
        http_work = [pool.submit(over_http, values) for _, values in http_part]
        unary_work = [pool.submit(over_unary, values) for _, values in unary_part]
        for number, (_, values) in enumerate(grpc_part):
            (first, second)[number % 2].send(values, request_id=str(number))
        answers = {**first.collect(80), **second.collect(80)}
        http_answers = [work.result() for work in http_work]
        unary_answers = [work.result() for work in unary_work]

    assert all(r.error is None for rs in answers.values() for r in rs)
    found = [[r.values for r in answers[str(number)]] for number in range(len(grpc_part))]
    for (text, values), parts in zip(requests, found + http_answers + unary_answers, strict=True):
        assert "".join(part["text_output"] for part in parts) == text
        if values["stream"] and len(parts) > 1:
            assert [part["block_index"] for part in parts] == list(range(len(parts)))
        assert [part["is_final"] for part in parts] == [False] * (len(parts) - 1) + [True]
    wait_until(lambda: free(wide) == 64, 10, "all slots free")


def test_grpc_cancel_frees_the_slot_within_one_block(narrow: TritonServer) -> None:
    with Stream(narrow) as stream:
        values = {"text_input": script(LONG, delay=BLOCK_SECONDS), "stream": True}
        stream.send({**values, "max_tokens": 512})
        stream.next()
        # The metrics follow the engine within a tenth of a second.
        time.sleep(0.15)
        tokens = metric(narrow, "blockdiff_output_tokens_total")
        stream.cancel()
        wait_until(lambda: is_idle(narrow), BLOCK_SECONDS + SLACK_SECONDS, "slot free")
        time.sleep(0.15)
        # The block that was being made when the caller left, and no more.
        assert metric(narrow, "blockdiff_output_tokens_total") - tokens <= 4


def test_http_disconnect_frees_the_slot_within_one_block(narrow: TritonServer) -> None:
    values = {"text_input": script(LONG, delay=BLOCK_SECONDS), "max_tokens": 512}
    stream = HttpStream(narrow, values)
    next(events := stream.events())
    events.close()
    # Triton notices at its next write, postprocessing at the block after that one.
    wait_until(lambda: is_idle(narrow), 2 * BLOCK_SECONDS + SLACK_SECONDS, "slot free")


def test_direct_cancel_is_seen_before_the_first_block(narrow: TritonServer) -> None:
    ids, spec = preprocessed(narrow, {"text_input": script("x", first_delay=30), "stream": True})
    with Stream(narrow) as stream:
        stream.send_raw([ids, spec], "block_diffusion")
        wait_until(lambda: free(narrow) == 1, 10, "running")
        stream.cancel()
        wait_until(lambda: is_idle(narrow), 5, "slot free")


def test_unary_cancel_frees_the_slot(narrow: TritonServer) -> None:
    client = grpcclient.InferenceServerClient(narrow.grpc_url)
    done = threading.Event()
    values = {"text_input": script(LONG, delay=BLOCK_SECONDS), "max_tokens": 512}
    call = client.async_infer("unary", inputs(values), callback=lambda **_: done.set())
    wait_until(lambda: free(narrow) == 1, 10, "running")
    call.cancel()
    wait_until(lambda: is_idle(narrow), 2 * BLOCK_SECONDS + SLACK_SECONDS, "slot free")
    assert done.wait(2)
    client.close()


def test_direct_cancel_while_waiting_in_execute(narrow: TritonServer) -> None:
    values = {"text_input": script("a b c d e f", block=1, delay=0.3), "stream": True}
    with Stream(narrow) as running, Stream(narrow) as waiting:
        running.send(values, request_id="1")
        running.send(values, request_id="2")
        wait_until(lambda: free(narrow) == 0, 10, "both slots taken")
        waiting.send_raw(preprocessed(narrow, values), "block_diffusion")
        wait_until(lambda: metric(narrow, "blockdiff_waiting_requests") == 1, 10, "one waits")
        waiting.cancel()
        wait_until(lambda: metric(narrow, "blockdiff_waiting_requests") == 0, 10, "gave up")
        assert free(narrow) == 0
        answers = running.collect(2)
    assert all(rs[-1].values["finish_reason"] == "stop" for rs in answers.values())
    wait_until(lambda: is_idle(narrow), 10, "all slots free")


def test_requests_cancelled_while_waiting_take_one_block_at_most(narrow: TritonServer) -> None:
    """Triton tells no running step of its ensemble's end, so the first block has to bring it."""
    short = {"text_input": script("a b c d", block=1, delay=0.1), "stream": True}
    long = {"text_input": script(LONG, block=1, delay=0.1), "stream": True, "max_tokens": 512}
    with Stream(narrow) as running, Stream(narrow) as waiting:
        running.send(short, request_id="1")
        running.send(short, request_id="2")
        wait_until(lambda: free(narrow) == 0, 10, "both slots taken")
        # One waits inside execute, two in Triton's queue.
        for number in range(3):
            waiting.send(long, request_id=f"w{number}")
        wait_until(lambda: metric(narrow, "blockdiff_waiting_requests") == 1, 10, "one waits")
        waiting.cancel()
        answers = running.collect(2)
        assert all(rs[-1].values["finish_reason"] == "stop" for rs in answers.values())
        wait_until(lambda: is_idle(narrow), 2 * 3 * 0.1 + SLACK_SECONDS, "all slots free")


@pytest.mark.parametrize("leave", ["grpc", "http"])
def test_random_disconnects_leave_all_slots_free(
    narrow: TritonServer, leave: str, make_values: Callable[[int], dict[str, Any]]
) -> None:
    rng = random.Random(3)
    for number in range(6):
        values = make_values(number)
        if leave == "grpc":
            with Stream(narrow) as stream:
                stream.send(values)
                time.sleep(rng.random() * 0.3)
        else:
            stream = HttpStream(narrow, values)
            for _ in zip(stream.events(), range(rng.randint(0, 3)), strict=False):
                pass
            stream.close()
    wait_until(lambda: is_idle(narrow), 3, "all slots free")
    (answer,) = stream_all(narrow, {"text_input": script("still here")})
    assert answer.values["text_output"] == "still here"


@pytest.fixture
def make_values() -> Callable[[int], dict[str, Any]]:
    def make(number: int) -> dict[str, Any]:
        text = script(f"{number} " * 50, block=2, delay=0.05)
        return {"text_input": text, "stream": True, "max_tokens": 200}

    return make


def preprocessed(server: TritonServer, values: dict[str, Any]) -> list[grpcclient.InferInput]:
    """The inputs of block_diffusion for a request, made by the real preprocessing model."""
    client = grpcclient.InferenceServerClient(server.grpc_url)
    result = client.infer("preprocessing", inputs(values))
    client.close()
    made = []
    for name, datatype in (("input_ids", "INT32"), ("request_spec", "BYTES")):
        array = result.as_numpy(name)
        tensor = grpcclient.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made
