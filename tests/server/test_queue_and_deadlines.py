"""Triton's own queue is the admission control; deadlines bound waiting and running."""

import time
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from blockdiff.embedded import TritonServer

from .calls import Response, Stream, generate, inputs, metric, post, script, stream_all, wait_until
from .test_order_and_cancel import free, is_idle, preprocessed

pytestmark = pytest.mark.server

# Long enough that nothing ends while a test fills the queue.
SLOW = {"text_input": script("a b", first_delay=2.0, block=8), "stream": True}
MODELS = ("block_diffusion", "ensemble")


def pending(server: TritonServer) -> float:
    return metric(server, "nv_inference_pending_request_count", model="block_diffusion")


class Filler:
    """Sends slow requests one by one, so that their order in the queue is known."""

    def __init__(self, stream: Stream, server: TritonServer, model: str) -> None:
        self._stream = stream
        self._server = server
        self._model = model
        self._direct = preprocessed(server, SLOW) if model == "block_diffusion" else None

    def send(self, request_id: str, **options: Any) -> None:
        if self._direct is None:
            self._stream.send(SLOW, request_id=request_id, **options)
        else:
            self._stream.send_raw(self._direct, self._model, request_id=request_id, **options)

    def fill(self, count: int) -> None:
        """Two run, the third waits inside execute, the others in Triton's queue."""
        for number in range(count):
            self.send(str(number))
            wait_until(lambda number=number: self._has_arrived(number), 10, f"{number} arrived")

    def _has_arrived(self, number: int) -> bool:
        if number < 2:
            return free(self._server) == 1 - number
        if number == 2:
            return metric(self._server, "blockdiff_waiting_requests") == 1
        return pending(self._server) == number - 2


@pytest.mark.parametrize("model", MODELS)
def test_ten_requests_on_two_slots_and_a_queue_of_four(narrow: TritonServer, model: str) -> None:
    with Stream(narrow) as stream:
        filler = Filler(stream, narrow, model)
        queue_time = metric(narrow, "nv_inference_queue_duration_us", model="block_diffusion")
        filler.fill(7)
        assert metric(narrow, "blockdiff_running_requests") == 2
        assert metric(narrow, "blockdiff_waiting_requests") == 1
        assert pending(narrow) == 4
        for number in range(7, 10):
            filler.send(str(number))
        answers = stream.collect(10)
    errors = [r.error for rs in answers.values() for r in rs if r.error is not None]
    assert len(errors) == 3
    assert all("Exceeds maximum queue size" in str(error) for error in errors)
    assert {str(n) for n in range(7)} <= answers.keys()
    waited = metric(narrow, "nv_inference_queue_duration_us", model="block_diffusion") - queue_time
    assert waited > 4e6
    wait_until(lambda: is_idle(narrow), 10, "all slots free")


@pytest.mark.parametrize("model", MODELS)
def test_priority_passes_the_queue(narrow: TritonServer, model: str) -> None:
    with Stream(narrow) as stream:
        filler = Filler(stream, narrow, model)
        filler.fill(6)
        filler.send("urgent", priority=1)
        finals = (r for r in iter_responses(stream, 7) if r.values["is_final"])
        order = [response.id for response in finals]
    # Two were running and one waited inside execute, already past the queue.
    assert set(order[:2]) == {"0", "1"}
    assert set(order[2:4]) == {"2", "urgent"}
    wait_until(lambda: is_idle(narrow), 10, "all slots free")


def test_overload_over_http_and_unary(narrow: TritonServer) -> None:
    with Stream(narrow) as stream:
        Filler(stream, narrow, "ensemble").fill(7)
        status, answer = generate(narrow, {"text_input": script("one more")})
        # Triton 24.10 answers every refused /generate with 400.
        assert status in (400, 503)
        assert "Exceeds maximum queue size" in answer["error"]
        assert unary_status(narrow, script("one more")) == "StatusCode.UNAVAILABLE"
    wait_until(lambda: is_idle(narrow), 10, "all slots free")


def unary_status(server: TritonServer, prompt: str) -> str:
    client = grpcclient.InferenceServerClient(server.grpc_url)
    with pytest.raises(InferenceServerException) as caught:
        client.infer("unary", inputs({"text_input": prompt}))
    client.close()
    return str(caught.value.status())


def iter_responses(stream: Stream, count: int) -> Any:
    while count:
        response: Response = stream.next()
        assert response.error is None, response.error
        count -= bool(response.parameters.get("triton_final_response"))
        yield response


def test_deadline_while_running_ends_with_timeout(narrow: TritonServer) -> None:
    values = {"text_input": script("word " * 60, block=1, delay=0.1), "stream": True}
    began = time.monotonic()
    responses = stream_all(narrow, values, timeout=600_000)
    assert 0.5 < time.monotonic() - began < 1.2
    assert responses[-1].values["finish_reason"] == "timeout"
    assert responses[-1].values["is_final"] is True
    assert len(responses) > 3
    wait_until(lambda: is_idle(narrow), 10, "all slots free")


def test_deadline_before_the_first_block(narrow: TritonServer) -> None:
    values = {"text_input": script("late", first_delay=20), "stream": True}
    began = time.monotonic()
    responses = stream_all(narrow, values, timeout=400_000)
    assert time.monotonic() - began < 5.0
    assert [r.values["finish_reason"] for r in responses] == ["timeout"]
    wait_until(lambda: is_idle(narrow), 10, "all slots free")


def test_deadline_while_waiting(narrow: TritonServer) -> None:
    with Stream(narrow) as running, Stream(narrow) as waiting:
        Filler(running, narrow, "ensemble").fill(2)
        began = time.monotonic()
        waiting.send(SLOW, timeout=400_000)
        error = waiting.next().error
        assert time.monotonic() - began < 5.0
        assert "retry" in str(error) or "Request timeout expired" in str(error)
        running.collect(2)
    wait_until(lambda: is_idle(narrow), 10, "all slots free")


def test_a_failing_round_fails_its_request_only(narrow: TritonServer) -> None:
    with Stream(narrow) as other:
        other.send(SLOW)
        values = {"text_input": script("a b c d", block=1, delay=0.05, fail_at=2), "stream": True}
        *blocks, last = stream_all(narrow, values)
        assert len(blocks) == 2
        assert "scripted failure" in str(last.error)
        status, answer = generate(narrow, {"text_input": values["text_input"]})
        assert status in (400, 503)
        assert "scripted failure" in answer["error"]
        assert unary_status(narrow, values["text_input"]) == "StatusCode.UNAVAILABLE"
        assert next(iter(other.collect().values()))[-1].values["finish_reason"] == "stop"
    assert post(narrow, "/v2/models/ensemble/generate", {"text_input": script("ok")})[0] == 200
    wait_until(lambda: is_idle(narrow), 10, "all slots free")
