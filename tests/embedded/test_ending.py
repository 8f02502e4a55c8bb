"""How long the supervisor waits for a server that does not end by itself; a fake server is enough.

Triton 24.10 loses count of requests after cancellations and then sits out its exit timeout.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from blockdiff.embedded.supervisor import Supervisor, SupervisorPolicy

EXIT_TIMEOUT = 3
POLICY = SupervisorPolicy(
    idle_seconds_before_end=0.6, idle_seconds_after_signal=0.2, unload_seconds=0.5
)


class StuckServer:
    """Ends only when it is killed. ``on_signal`` is what its engine does at SIGTERM."""

    exit_timeout_seconds = EXIT_TIMEOUT

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self.was_signalled = False
        self._is_killed = False

    def launch(self, say: object) -> None:
        pass

    def readiness(self, timeout: float, say: object) -> "StuckServer":
        return self

    def is_running(self) -> bool:
        return not self._is_killed

    def stubs(self) -> dict[int, str]:
        return {}

    def terminate(self) -> None:
        self.was_signalled = True
        self._on_signal()

    def stop(self, graceful_seconds: float) -> None:
        self._is_killed = True


def seconds_to_end(beat: Path, server: StuckServer, write: Callable[[], None] | None) -> float:
    """``write`` stands for the engine, which answers when it is asked to refuse newcomers."""
    supervisor = Supervisor(server, POLICY, heartbeat_path=beat, refuse_new=write)  # type: ignore[arg-type]
    supervisor.request_stop()
    started = time.monotonic()
    assert supervisor.run() == 0
    assert server.was_signalled
    return time.monotonic() - started


@pytest.fixture
def beat(tmp_path: Path) -> Path:
    return tmp_path / "heartbeat.json"


def writer(beat: Path, running: int) -> Callable[[], None]:
    content = {"pid": 1, "monotonic": time.monotonic(), "running": running, "waiting": 0}
    return lambda: beat.write_text(json.dumps(content)) and None


def test_lost_count_of_requests_does_not_hold_up_the_end(beat):
    server = StuckServer(on_signal=lambda: None)
    assert seconds_to_end(beat, server, writer(beat, running=0)) < 2


def test_slow_unloading_after_the_engine_has_left_does_not_either(beat):
    server = StuckServer(on_signal=beat.unlink)
    assert seconds_to_end(beat, server, writer(beat, running=0)) < 2


def test_running_requests_have_the_whole_exit_timeout(beat):
    server = StuckServer(on_signal=lambda: None)
    assert seconds_to_end(beat, server, writer(beat, running=1)) >= EXIT_TIMEOUT


def test_a_server_without_a_heartbeat_has_it_too(beat):
    server = StuckServer(on_signal=lambda: None)
    assert seconds_to_end(beat, server, None) >= EXIT_TIMEOUT
