"""Keeps a tritonserver in service: watches its stubs and its engine, ends and restarts it.

Triton neither reports nor restarts a dead Python stub in every release, and streams that were
running in it hang for ever. Ending the server breaks them, so that clients see an error at once.
Knows processes and heartbeats; knows nothing of the models.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blockdiff.embedded.heartbeat import read_heartbeat
from blockdiff.embedded.processes import is_alive
from blockdiff.embedded.server import ServerError, TritonServer

Say = Callable[[str], None]


@dataclass(frozen=True)
class SupervisorPolicy:
    """How faults are found and how often a server is restarted."""

    restart: bool = True
    max_restarts: int = 3
    window_seconds: float = 300.0
    first_backoff_seconds: float = 0.5
    max_backoff_seconds: float = 15.0
    poll_seconds: float = 0.25
    heartbeat_timeout_seconds: float = 30.0
    start_timeout_seconds: float = 600.0
    idle_seconds_before_end: float = 2.5
    idle_seconds_after_signal: float = 1.0
    unload_seconds: float = 10.0


class Supervisor:
    """Runs one server until it is asked to stop or cannot be kept up.

    ``refuse_new`` asks the engine to refuse newcomers; it is called again and again at the end.
    """

    def __init__(
        self,
        server: TritonServer,
        policy: SupervisorPolicy,
        *,
        heartbeat_path: Path | None = None,
        refuse_new: Callable[[], None] | None = None,
        on_ready: Callable[[], None] = lambda: None,
        say: Say = lambda line: None,
    ) -> None:
        self.server = server
        self.policy = policy
        self.restarts = 0
        self._heartbeat_path = heartbeat_path
        self._refuse_new = refuse_new
        self._on_ready = on_ready
        self._say = say
        self._stop = threading.Event()
        self._restart_times: list[float] = []

    @property
    def is_stopping(self) -> bool:
        """True once a stop was asked for."""
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Ask for a graceful end; safe in a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Serve until stopped; 0 after a graceful end, 1 when the server could not be kept up."""
        self._bring_up()
        while not self._stop.is_set():
            fault = self._watch()
            if fault is None:
                break
            self._say(f"fault: {fault}; ending the server so that waiting clients get an error")
            self.server.stop(graceful_seconds=0)
            if not self._may_restart():
                return 1
            self._restart()
        if not self._stop.is_set():
            return 1
        self._say("stopping: running requests may finish")
        self._drain()
        return 0

    def _bring_up(self) -> None:
        if self._heartbeat_path is not None:
            # A beat of the run before must not count for this one.
            self._heartbeat_path.unlink(missing_ok=True)
        self.server.launch(self._say)
        try:
            self._wait_ready()
        except BaseException:
            self.server.stop(graceful_seconds=0)
            raise
        if not self._stop.is_set():
            self._on_ready()

    def _wait_ready(self) -> None:
        waiter = self.server.readiness(self.policy.start_timeout_seconds, self._say)
        while not self._stop.is_set() and not waiter.step():
            self._stop.wait(0.1)

    def _watch(self) -> str | None:
        """Return the first fault; None when asked to stop."""
        stubs = self.server.stubs()
        while not self._stop.wait(self.policy.poll_seconds):
            fault = self._fault(stubs)
            if fault is not None:
                return fault
        return None

    def _fault(self, stubs: dict[int, str]) -> str | None:
        if not self.server.is_running():
            return f"tritonserver ended by itself (exit code {self.server.exit_code()})"
        # Looked at first: an engine whose process dies meanwhile is named by its model.
        engine_fault = self._engine_fault()
        alive = self.server.stubs()
        for pid, model in stubs.items():
            if pid not in alive:
                return f"the process of model {model} ({pid}) died"
        return engine_fault

    def _engine_fault(self) -> str | None:
        beat = read_heartbeat(self._heartbeat_path) if self._heartbeat_path else None
        if beat is None:
            return None
        if beat.has_stopped or not is_alive(beat.pid):
            return f"the engine (process {beat.pid}) has stopped"
        if beat.age() > self.policy.heartbeat_timeout_seconds:
            return f"the engine (process {beat.pid}) made no round for {beat.age():.0f} s"
        return None

    def _drain(self) -> None:
        """Let running requests finish, bounded by the exit timeout, and end the server."""
        deadline = time.monotonic() + self.server.exit_timeout_seconds
        is_drained = False
        # SIGTERM makes Triton refuse the inner steps of an ensemble too, so a running stream would
        # get no further block. So the engine empties first.
        if self._refuse_new is not None:
            is_drained = self._wait_drained(deadline, self._refuse_new)
        has_engine = self._heartbeat_path is not None and self._heartbeat_path.exists()
        self.server.terminate()
        deadline = max(deadline, time.monotonic() + self.policy.unload_seconds)
        policy = self.policy
        seconds = policy.idle_seconds_after_signal if is_drained else policy.idle_seconds_before_end
        self._wait_ended(deadline, _Idle(self._heartbeat_path, seconds, may_leave=has_engine))
        self.server.stop(graceful_seconds=0)

    def _wait_drained(self, deadline: float, refuse_new: Callable[[], None]) -> bool:
        """True when no request runs any more, False when none can finish."""
        idle = _Idle(self._heartbeat_path, self.policy.idle_seconds_before_end)
        while time.monotonic() < deadline and self.server.is_running():
            # Said again and again, because a message may be lost.
            refuse_new()
            if idle.has_lasted():
                return True
            if self._engine_fault() is not None:
                return False
            time.sleep(0.1)
        return False

    def _wait_ended(self, deadline: float, idle: "_Idle") -> None:
        """Return when the server has ended or only waits for what will never come.

        That is clients that keep a stream open, requests that it has lost count of (Triton 24.10
        does after cancellations) and slow unloading.
        """
        while self.server.is_running() and time.monotonic() < deadline:
            if idle.has_lasted():
                return
            time.sleep(0.1)

    def _may_restart(self) -> bool:
        if not self.policy.restart:
            self._say("not restarting (--no-restart)")
            return False
        now = time.monotonic()
        recent = [t for t in self._restart_times if now - t < self.policy.window_seconds]
        self._restart_times = recent
        if len(recent) >= self.policy.max_restarts:
            self._say(
                f"giving up after {len(recent)} restarts in {self.policy.window_seconds:.0f} s; "
                f"the server's log is {self.server.log_path}"
            )
            return False
        return True

    def _restart(self) -> None:
        """Restart with backoff; a start that fails counts as a restart too."""
        while self._may_restart():
            backoff = min(
                self.policy.first_backoff_seconds * 2 ** len(self._restart_times),
                self.policy.max_backoff_seconds,
            )
            self._restart_times.append(time.monotonic())
            self.restarts += 1
            self._say(f"restarting in {backoff:.1f} s (restart {self.restarts})")
            if self._stop.wait(backoff):
                return
            try:
                return self._bring_up()
            except ServerError as error:
                self._say(f"fault: {error}")
        raise ServerError(f"the server could not be restarted; see {self.server.log_path}")


class _Idle:
    """Whether the engine has reported for some time that no request runs or waits.

    ``may_leave``: an engine that no longer reports has been unloaded, so nothing runs in it.
    """

    def __init__(
        self, heartbeat_path: Path | None, seconds: float, may_leave: bool = False
    ) -> None:
        self._path = heartbeat_path
        self._seconds = seconds
        self._may_leave = may_leave
        self._since: float | None = None

    def has_lasted(self) -> bool:
        """Look once; False where there is no heartbeat."""
        beat = read_heartbeat(self._path) if self._path else None
        if beat is None:
            is_idle = self._may_leave and self._path is not None and not self._path.exists()
        else:
            is_idle = beat.running == 0 and not beat.waiting
        if not is_idle:
            self._since = None
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since > self._seconds
