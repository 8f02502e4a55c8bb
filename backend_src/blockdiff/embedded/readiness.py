"""Waiting for a server to become ready. Knows a server only by a few questions."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from blockdiff.embedded.logfile import LogFollower
from blockdiff.errors import BlockdiffError

Progress = Callable[[str], None]


class ServerError(BlockdiffError):
    """tritonserver did not start, did not become ready, or ended by itself."""


class Starting(Protocol):
    """What is asked of a server that starts."""

    log_path: Path

    def is_running(self) -> bool: ...

    def is_ready(self) -> bool: ...

    def exit_code(self) -> int | None: ...


class Readiness:
    """One wait for readiness: passes on progress and turns an early end into ServerError."""

    def __init__(
        self, server: Starting, log: LogFollower, timeout: float, progress: Progress
    ) -> None:
        self._server = server
        self._log = log
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._progress = progress

    def step(self) -> bool:
        """Look once; True when the server is ready."""
        for line in self._log.progress_lines():
            self._progress(line)
        if not self._server.is_running():
            reason = self._log.last_error() or f"exit code {self._server.exit_code()}"
            raise ServerError(f"tritonserver ended while starting: {reason}")
        if self._server.is_ready():
            return True
        if time.monotonic() > self._deadline:
            reason = self._log.last_error() or f"see {self._server.log_path}"
            raise ServerError(f"tritonserver was not ready after {self._timeout:.0f} s: {reason}")
        return False
