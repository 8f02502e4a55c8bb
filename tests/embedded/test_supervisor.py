"""Faults of a real server: the supervisor breaks what hangs and brings the server back."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blockdiff.embedded import TritonServer
from blockdiff.embedded.heartbeat import VARIABLE
from blockdiff.embedded.supervisor import Supervisor, SupervisorPolicy
from tests.embedded.conftest import all_ended, wait_until

pytestmark = [pytest.mark.server, pytest.mark.chaos]


class Supervised:
    """A supervisor on its own thread, with what it said and how it ended."""

    def __init__(self, server: TritonServer, policy: SupervisorPolicy, heartbeat: Path) -> None:
        self.server = server
        self.said: list[str] = []
        self.ready = 0
        self.code: int | None = None
        self.supervisor = Supervisor(
            server,
            policy,
            heartbeat_path=heartbeat,
            on_ready=self._on_ready,
            say=self.said.append,
        )
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.code = self.supervisor.run()

    def _on_ready(self) -> None:
        self.ready += 1

    def wait_ready(self, times: int, seconds: float = 60) -> None:
        assert wait_until(lambda: self.ready >= times or not self.thread.is_alive(), seconds)
        assert self.ready == times, self.said

    def stop(self) -> None:
        self.supervisor.request_stop()
        self.thread.join(60)
        assert not self.thread.is_alive()

    def stub_of(self, model: str) -> int:
        return next(pid for pid, name in self.server.stubs().items() if name == model)


@pytest.fixture
def supervise(make_server, tmp_path) -> Iterator[Callable[..., Supervised]]:
    made: list[Supervised] = []

    def make(exit_timeout_seconds: int = 30, **policy) -> Supervised:
        heartbeat = tmp_path / "heartbeat.json"
        server = make_server(
            environment={VARIABLE: str(heartbeat)}, exit_timeout_seconds=exit_timeout_seconds
        )
        made.append(Supervised(server, SupervisorPolicy(**policy), heartbeat))
        made[-1].wait_ready(1)
        return made[-1]

    yield make
    for supervised in made:
        supervised.stop()


def test_killed_stub_breaks_streams_at_once_and_the_server_comes_back(supervise, open_stream):
    supervised = supervise()
    stream = open_stream(supervised.server.grpc_url, 1000, 0.1)
    assert stream.next() == 0
    old = [supervised.server.pid, *supervised.server.stubs()]
    killed_at = time.monotonic()
    os.kill(supervised.stub_of("counter"), signal.SIGKILL)
    while isinstance(arrived := stream.next(timeout=5), int):
        pass
    assert time.monotonic() - killed_at < 5
    assert "UNAVAILABLE" in str(arrived)
    supervised.wait_ready(2)
    assert all_ended(old)
    assert open_stream(supervised.server.grpc_url, 1, 0.0).next() == 0
    assert any("model counter" in line and "died" in line for line in supervised.said)


def test_stalled_engine_counts_as_dead(supervise, tmp_path):
    supervised = supervise(heartbeat_timeout_seconds=1.5)
    stall = tmp_path / "heartbeat.json.stall"
    stall.touch()
    stalled_at = time.monotonic()
    assert wait_until(lambda: any("made no round" in line for line in supervised.said), 5)
    assert time.monotonic() - stalled_at < 5
    stall.unlink()
    supervised.wait_ready(2)


def test_frozen_engine_process_counts_as_stalled(supervise):
    supervised = supervise(heartbeat_timeout_seconds=1.5)
    os.kill(supervised.stub_of("counter"), signal.SIGSTOP)
    assert wait_until(lambda: any("made no round" in line for line in supervised.said), 5)
    supervised.wait_ready(2)


def test_killed_server_is_restarted(supervise):
    supervised = supervise()
    os.kill(supervised.server.pid, signal.SIGKILL)
    supervised.wait_ready(2)
    assert any("ended by itself" in line for line in supervised.said)


def test_without_restart_the_supervisor_ends_with_1(supervise):
    supervised = supervise(restart=False)
    pids = [supervised.server.pid, *supervised.server.stubs()]
    os.kill(supervised.stub_of("plain"), signal.SIGKILL)
    supervised.thread.join(5)
    assert supervised.code == 1
    assert all_ended(pids)


def test_too_many_restarts_end_with_a_clear_line(supervise):
    supervised = supervise(max_restarts=1, first_backoff_seconds=0.1)
    os.kill(supervised.stub_of("counter"), signal.SIGKILL)
    supervised.wait_ready(2)
    os.kill(supervised.stub_of("counter"), signal.SIGKILL)
    supervised.thread.join(10)
    assert supervised.code == 1
    assert any("giving up after 1 restarts" in line for line in supervised.said)


def test_stop_request_lets_a_stream_finish_and_refuses_new_ones(supervise, open_stream):
    supervised = supervise()
    stream = open_stream(supervised.server.grpc_url, 10, 0.2)
    assert stream.next() == 0
    supervised.supervisor.request_stop()
    assert [stream.next() for _ in range(9)] == list(range(1, 10))
    stream.close()
    supervised.stop()
    assert supervised.code == 0


def test_idle_open_stream_does_not_hold_up_the_end(supervise, open_stream):
    supervised = supervise(idle_seconds_before_end=1.0)
    stream = open_stream(supervised.server.grpc_url, 1, 0.0)
    assert stream.next() == 0
    started = time.monotonic()
    supervised.stop()
    assert supervised.code == 0
    assert time.monotonic() - started < 10


def test_stop_while_starting_ends_at_once(make_server, tmp_path):
    server = make_server()
    supervisor = Supervisor(server, SupervisorPolicy(), heartbeat_path=tmp_path / "beat")
    supervisor.request_stop()
    started = time.monotonic()
    assert supervisor.run() == 0
    assert time.monotonic() - started < 15
    assert not server.is_running()
