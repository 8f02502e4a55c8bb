"""What the supervisor calls a fault, seen on a pretended server. Run: pytest tests/embedded"""

from pathlib import Path
from typing import cast

import pytest

from blockdiff.embedded import TritonServer, supervisor
from blockdiff.embedded.heartbeat import Heartbeat
from blockdiff.embedded.supervisor import Supervisor, SupervisorPolicy


class PretendedServer:
    """One stub, whose process is there until the test says otherwise."""

    def __init__(self, pid: int) -> None:
        self.alive = {pid: "block_diffusion"}

    def is_running(self) -> bool:
        return True

    def stubs(self) -> dict[int, str]:
        return dict(self.alive)


def watch(server: PretendedServer, folder: Path) -> Supervisor:
    return Supervisor(
        cast(TritonServer, server),
        SupervisorPolicy(),
        heartbeat_path=folder / "beat",
        say=lambda line: None,
    )


def test_an_engine_process_that_dies_between_two_looks_is_named_by_its_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pid = 4_000_000_000  # no process has it
    server = PretendedServer(pid)

    def die(path: Path) -> Heartbeat:
        server.alive.clear()
        return Heartbeat(pid, monotonic=1e12)

    monkeypatch.setattr(supervisor, "read_heartbeat", die)
    monkeypatch.setattr(supervisor, "is_alive", lambda pid: False)
    watching = watch(server, tmp_path)
    assert watching._fault(server.stubs()) == f"the process of model block_diffusion ({pid}) died"


def test_an_engine_that_stopped_in_a_living_process_is_called_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = PretendedServer(7)
    monkeypatch.setattr(supervisor, "read_heartbeat", lambda path: Heartbeat(7, monotonic=0))
    watching = watch(server, tmp_path)
    assert watching._fault(server.stubs()) == "the engine (process 7) has stopped"
