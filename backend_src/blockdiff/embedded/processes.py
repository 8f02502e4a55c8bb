"""Reads /proc: who is a child of whom and what runs. Starts and ends nothing."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The kernel cuts a process name to 15 bytes.
_STUB_COMMAND = "triton_python_backend_stub"[:15]


@dataclass(frozen=True)
class ProcessStatus:
    """One line of /proc/PID/stat, as far as we need it."""

    pid: int
    command: str
    state: str
    parent: int

    @property
    def is_alive(self) -> bool:
        return self.state not in ("Z", "X", "x")


def status(pid: int) -> ProcessStatus | None:
    """The process's status, or None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        # The command name may hold spaces and brackets: cut at the last bracket.
        head, tail = text.rsplit(")", 1)
        state, parent = tail.split()[:2]
        return ProcessStatus(pid, head.split("(", 1)[1], state, int(parent))
    except (OSError, IndexError, ValueError):
        return None


def is_alive(pid: int) -> bool:
    """True for a process that exists and is not a zombie."""
    found = status(pid)
    return found is not None and found.is_alive


def processes() -> Iterator[ProcessStatus]:
    """Every process that can be seen."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            found = status(int(entry.name))
            if found is not None:
                yield found


def stubs_of(server_pid: int) -> dict[int, str]:
    """The live Python-backend stubs of a server: process id to the model's name."""
    return {
        process.pid: _model_name(process.pid)
        for process in processes()
        if process.parent == server_pid and process.is_alive and process.command == _STUB_COMMAND
    }


def _model_name(pid: int) -> str:
    """A stub's command line names its model file: REPOSITORY/MODEL/VERSION/model.py."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        for word in words:
            if word.endswith(b"/model.py"):
                return Path(word.decode()).parent.parent.name
    return "?"
