"""A dead or hung engine: callers get UNAVAILABLE within seconds, ``blockdiff serve`` recovers."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from blockdiff.embedded import processes
from tests.server.calls import Stream, inputs, metric, script, wait_until
from tests.server.conftest import CHECKPOINT

pytestmark = [pytest.mark.server, pytest.mark.chaos]

# What the users are promised.
WITHIN_SECONDS = 5.0
RESTART_SECONDS = 90.0


class Served(NamedTuple):
    """A running ``blockdiff serve``; also what the callers need of a server."""

    grpc_url: str
    metrics_url: str
    pids: Callable[[], list[int]]
    lines: list[str]
    process: subprocess.Popen[str]

    def stub(self, model: str) -> int:
        for server in self.pids():
            for pid, name in processes.stubs_of(server).items():
                if name == model:
                    return pid
        raise AssertionError(f"no stub of {model}")

    def is_ready(self) -> bool:
        client = grpcclient.InferenceServerClient(self.grpc_url)
        try:
            return bool(client.is_server_ready()) and bool(client.is_model_ready("ensemble"))
        except InferenceServerException:
            return False
        finally:
            client.close()


@pytest.fixture
def served(make_repository: Callable[..., Path]) -> Iterator[Served]:
    command = [sys.executable, "-m", "blockdiff.cli.main", "serve"]
    command += ["--model", str(CHECKPOINT), "--model-repository", str(make_repository())]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--format", "json"]
    command += ["--slots", "2", "--threads", "1", "--heartbeat-timeout", "2"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None and process.stderr is not None
    lines: list[str] = []
    announced: list[dict[str, Any]] = []

    def read(pipe: Any, keep: Callable[[str], None]) -> None:
        for line in pipe:
            keep(line)

    readers = [
        threading.Thread(target=read, args=(process.stderr, lines.append)),
        threading.Thread(
            target=read, args=(process.stdout, lambda line: announced.append(json.loads(line)))
        ),
    ]
    for reader in readers:
        reader.start()
    try:
        wait_until(lambda: bool(announced) or process.poll() is not None, 90, "serve is ready")
        assert announced, "".join(lines)
        urls = announced[0]
        yield Served(urls["grpc"], urls["metrics"], lambda: [announced[-1]["pid"]], lines, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, "".join(lines)
        assert not any("Traceback" in line for line in lines)
    finally:
        process.kill()
        process.wait()
        for reader in readers:
            reader.join()


def watch(served: Served, values: dict[str, Any], into: list[Any]) -> threading.Thread:
    """Reads a stream in the background and notes its end and when that came."""

    def read() -> None:
        with Stream(served) as stream:  # type: ignore[arg-type]
            stream.send(values)
            while True:
                response = stream.next(120)
                if response.error is not None or response.values.get("is_final"):
                    into.append((time.monotonic(), response))
                    return

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def newcomer_status(served: Served) -> str:
    client = grpcclient.InferenceServerClient(served.grpc_url)
    try:
        client.infer("unary", inputs({"text_input": script("new")}), client_timeout=20)
        return "answered"
    except InferenceServerException as error:
        return str(error.status())
    finally:
        client.close()


def answers(served: Served) -> bool:
    client = grpcclient.InferenceServerClient(served.grpc_url)
    try:
        values = {"text_input": script("back again"), "max_tokens": 64}
        result = client.infer("unary", inputs(values), client_timeout=20)
        return bool(result.as_numpy("text_output")[0][0].decode() == "back again")
    except InferenceServerException:
        return False
    finally:
        client.close()


SLOW = {"text_input": script("one two three four", block=1, delay=1.0), "stream": True}


@pytest.mark.parametrize("model", ["block_diffusion", "postprocessing"])
def test_kill_9_of_a_stub(served: Served, model: str) -> None:
    ends: list[Any] = []
    # Two run, one waits inside execute, one in Triton's queue.
    threads = [watch(served, SLOW, ends) for _ in range(4)]
    time.sleep(1.5)
    began = time.monotonic()
    os.kill(served.stub(model), signal.SIGKILL)
    time.sleep(0.2)
    assert newcomer_status(served) == "StatusCode.UNAVAILABLE"
    assert time.monotonic() - began < WITHIN_SECONDS
    for thread in threads:
        thread.join(WITHIN_SECONDS)
    assert len(ends) == 4
    for ended_at, response in ends:
        assert "UNAVAILABLE" in str(response.error)
        assert ended_at - began < WITHIN_SECONDS, response.error
    assert any(f"the process of model {model}" in line for line in served.lines)
    wait_until(lambda: served.is_ready() and answers(served), RESTART_SECONDS, "back in service")


@pytest.mark.parametrize("fault", ["die_at", "hang_at"])
def test_engine_thread_breaks(served: Served, fault: str) -> None:
    ends: list[Any] = []
    thread = watch(served, SLOW, ends)
    time.sleep(0.5)
    began = time.monotonic()
    with Stream(served) as stream:  # type: ignore[arg-type]
        stream.send({"text_input": script("x", **{fault: 0}), "stream": True})
        error = stream.next(WITHIN_SECONDS + 5).error
        assert error is not None
        assert time.monotonic() - began < WITHIN_SECONDS
    thread.join(WITHIN_SECONDS)
    ((ended_at, response),) = ends
    assert response.error is not None
    assert ended_at - began < WITHIN_SECONDS
    if fault == "die_at":
        assert "the engine has died" in error.message()
    else:
        assert "UNAVAILABLE" in str(error) and "UNAVAILABLE" in str(response.error)
    wait_until(lambda: served.is_ready() and answers(served), RESTART_SECONDS, "back in service")


def test_sigterm_lets_running_and_waiting_streams_finish(served: Served) -> None:
    """Two run and one waits; who comes later is told to go elsewhere."""
    values = {"text_input": script("a b c d", block=1, delay=1.0), "stream": True}
    ends: list[Any] = []
    threads = [watch(served, values, ends) for _ in range(3)]
    wait_until(lambda: metric(served, "blockdiff_running_requests") == 2, 10, "two run")
    wait_until(lambda: metric(served, "blockdiff_waiting_requests") == 1, 10, "one waits")
    served.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert newcomer_status(served) == "StatusCode.UNAVAILABLE"
    for thread in threads:
        thread.join(20)
    assert [response.values.get("finish_reason") for _, response in ends] == ["stop"] * 3
    assert served.process.wait(60) == 0
