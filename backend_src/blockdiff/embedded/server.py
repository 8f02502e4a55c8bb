"""Starts and stops one tritonserver on a model repository. Knows nothing of what the models do."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType

from blockdiff.embedded import guard, ports, processes
from blockdiff.embedded.installation import TritonInstallation, find_installation
from blockdiff.embedded.logfile import LogFollower
from blockdiff.embedded.readiness import Readiness, ServerError
from blockdiff.embedded.shared_memory import require_shared_memory
from blockdiff.errors import ConfigError

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ServerPorts:
    """Where the server listens."""

    http: int
    grpc: int
    metrics: int


class TritonServer:
    """One tritonserver process below a guard; a context manager that leaves nothing running.

    A port that is not given is chosen free. Stays usable for further ``start`` calls after ``stop``
    and keeps its ports.
    """

    def __init__(
        self,
        model_repository: Path,
        *,
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        log_path: Path,
        extra_args: Sequence[str] = (),
        host: str = "127.0.0.1",
        load_models: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        exit_timeout_seconds: int = 30,
        installation: TritonInstallation | None = None,
    ) -> None:
        self.model_repository = Path(model_repository).resolve()
        self.host = host
        self.log_path = Path(log_path)
        self.load_models = tuple(load_models)
        self.extra_args = tuple(extra_args)
        self.environment = dict(environment or {})
        self.exit_timeout_seconds = exit_timeout_seconds
        self._installation = installation
        self._wanted = (http_port, grpc_port, metrics_port)
        self._ports: ServerPorts | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._prefix = ""
        self._ending = threading.Lock()
        self._log_offset = 0

    def __enter__(self) -> "TritonServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(graceful_seconds=0 if kind else None)

    @property
    def ports(self) -> ServerPorts:
        """The ports in use; chosen at the first look or start."""
        if self._ports is None:
            http, grpc, metrics = self._wanted
            fresh = iter(ports.free_ports(3, self.host))
            self._ports = ServerPorts(
                http if http is not None else next(fresh),
                grpc if grpc is not None else next(fresh),
                metrics if metrics is not None else next(fresh),
            )
        return self._ports

    @property
    def reachable_host(self) -> str:
        """The address under which this machine reaches the server."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    @property
    def http_url(self) -> str:
        return f"http://{_bracketed(self.reachable_host)}:{self.ports.http}"

    @property
    def grpc_url(self) -> str:
        return f"{_bracketed(self.reachable_host)}:{self.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        return f"http://{_bracketed(self.reachable_host)}:{self.ports.metrics}/metrics"

    @property
    def pid(self) -> int | None:
        """Process id of tritonserver itself; None before start and after stop."""
        return self._pid

    @property
    def shared_memory_prefix(self) -> str:
        """Start of the names of this run's regions in /dev/shm."""
        return self._prefix

    def stubs(self) -> dict[int, str]:
        """Live Python-backend stubs: process id to model name."""
        return processes.stubs_of(self._pid) if self._pid is not None else {}

    def is_running(self) -> bool:
        """True while tritonserver exists (it may not be ready)."""
        return self._guard is not None and self._guard.poll() is None

    def exit_code(self) -> int | None:
        """The code with which the server ended; above 128 it is 128 + signal."""
        return None if self._guard is None else self._guard.poll()

    def start(self, timeout: float = 300, progress: Progress = lambda line: None) -> None:
        """Start the server and wait until every model is ready; stops it again when that fails."""
        self.launch(progress)
        try:
            self.wait_ready(timeout, progress)
        except BaseException:
            self.stop(graceful_seconds=0)
            raise

    def launch(self, progress: Progress = lambda line: None) -> None:
        """Start the process without waiting for readiness."""
        if self.is_running():
            raise ServerError(f"the server is already running as process {self._pid}")
        if not self.model_repository.is_dir():
            raise ConfigError(f"model repository {self.model_repository}: no such folder")
        if self._installation is None:
            self._installation = find_installation(progress)
        self._require_free_ports()
        require_shared_memory()
        self._prefix = f"blockdiff_{os.getpid()}_{uuid.uuid4().hex[:8]}_"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_offset = self.log_path.stat().st_size if self.log_path.exists() else 0
        environment = {**os.environ, **self._installation.environment, **self.environment}
        with open(self.log_path, "ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, self._prefix, *self.command()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        assert self._guard.stdout is not None
        line = self._guard.stdout.readline()
        if not line.strip().isdigit():
            raise ServerError(f"tritonserver could not be started; see {self.log_path}")
        self._pid = int(line)

    def command(self) -> list[str]:
        """The full command line of tritonserver."""
        assert self._installation is not None
        command = [
            str(self._installation.binary),
            f"--model-repository={self.model_repository}",
            *self._installation.arguments,
            f"--http-address={self.host}",
            f"--http-port={self.ports.http}",
            f"--grpc-address={self.host}",
            f"--grpc-port={self.ports.grpc}",
            f"--metrics-address={self.host}",
            f"--metrics-port={self.ports.metrics}",
            f"--exit-timeout-secs={self.exit_timeout_seconds}",
            f"--backend-config=python,shm-region-prefix-name={self._prefix}",
        ]
        if self.load_models:
            command.append("--model-control-mode=explicit")
            command += [f"--load-model={name}" for name in self.load_models]
        return [*command, *self.extra_args]

    def wait_ready(self, timeout: float = 300, progress: Progress = lambda line: None) -> None:
        """Wait until the server reports ready; ServerError with the server's own reason if not."""
        readiness = self.readiness(timeout, progress)
        while not readiness.step():
            time.sleep(0.1)

    def readiness(self, timeout: float, progress: Progress) -> Readiness:
        """A wait for readiness that the caller drives step by step."""
        return Readiness(self, LogFollower(self.log_path, self._log_offset), timeout, progress)

    def is_ready(self) -> bool:
        """Ask the server's own readiness endpoint; metrics open a moment after it says yes."""
        connection = HTTPConnection(self.reachable_host, self.ports.http, timeout=2)
        try:
            connection.request("GET", "/v2/health/ready")
            is_ready = connection.getresponse().status == 200
            if is_ready and not any(a.startswith("--allow-metrics") for a in self.extra_args):
                socket.create_connection((self.reachable_host, self.ports.metrics), 2).close()
            return is_ready
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def terminate(self) -> None:
        """Ask the server to finish what runs and end; returns at once."""
        if self._guard is not None and self._guard.poll() is None:
            self._guard.send_signal(signal.SIGTERM)

    def stop(self, graceful_seconds: float | None = None) -> int | None:
        """End the server and everything below it; returns its exit code.

        ``graceful_seconds`` bounds how long running requests may take to finish (None: the exit
        timeout); 0 kills at once.
        """
        with self._ending:
            if self._guard is None:
                return None
            limit = self.exit_timeout_seconds + 5 if graceful_seconds is None else graceful_seconds
            if limit > 0:
                self.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._guard.wait(limit)
            return self._finish()

    def _finish(self) -> int | None:
        assert self._guard is not None
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._guard.wait(10)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            if self._pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._pid, signal.SIGKILL)
            self._guard.wait()
        code = self._guard.returncode
        self._guard = None
        self._pid = None
        return code

    def _require_free_ports(self) -> None:
        ports.require_address(self.host)
        chosen = self.ports
        taken = not all(ports.is_free(p, self.host) for p in (chosen.http, chosen.grpc))
        if taken and self._wanted == (None, None, None):
            self._ports = None
            chosen = self.ports
        named = {"http port": chosen.http, "grpc port": chosen.grpc}
        ports.require_free({**named, "metrics port": chosen.metrics}, self.host)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
