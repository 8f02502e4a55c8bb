"""Starts the processes of the ranks above 0 and says what became of one that ended.

Knows processes and pipes; knows nothing of models or of rounds.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from blockdiff.errors import BlockdiffError, ConfigError, EngineDeadError

# how a follower ends that only noticed that another rank was gone
LOST_PEER_CODE = 3
END_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


@dataclass
class Follower:
    """One started process; ``reports`` are what it has said, filled by the watch."""

    rank: int
    process: "subprocess.Popen[bytes]"
    connection: Connection
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"tensor parallel rank {self.rank} (pid {self.process.pid})"

    @property
    def is_ready(self) -> bool:
        return any(report["kind"] == "ready" for report in self.reports)

    @property
    def is_victim(self) -> bool:
        """Whether it ended only because another rank did."""
        return self.process.poll() == LOST_PEER_CODE

    def epitaph(self) -> BlockdiffError:
        """Why it ended, as the error to raise; it must have ended."""
        for report in self.reports:
            if report["kind"] != "ready":
                kind = ConfigError if report["kind"] == "config" else EngineDeadError
                return kind(f"{self.label} failed: {report['text']}")
        code = self.process.poll()
        if code is not None and code < 0:
            return EngineDeadError(f"{self.label} died: killed by signal {-code}")
        return EngineDeadError(f"{self.label} died: it ended with exit code {code}")

    def is_stopped(self) -> bool:
        """Whether a signal (SIGSTOP) keeps it from running."""
        with contextlib.suppress(OSError, IndexError):
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
            # the command name may hold spaces and brackets: read after the last bracket
            return stat.rsplit(")", 1)[1].split()[0] in ("T", "t")
        return False

    def end(self, seconds: float = 0.0) -> None:
        """Let it leave for ``seconds``, then kill it; nothing of it is left afterwards."""
        with contextlib.suppress(OSError):
            self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.process.kill()
        self.process.wait()


def start_follower(rank: int, orders: Mapping[str, Any]) -> Follower:
    """A process for ``rank`` that does what ``follower.Orders`` says and then waits for commands.

    It ends by itself when this process closes its end of the connection or dies, and is killed when
    the calling thread ends.
    """
    ours, theirs = Pipe()
    own = json.dumps({**orders, "rank": rank, "connection": theirs.fileno()})
    paths = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-m", "blockdiff.parallel.follower", own],
        stdin=subprocess.DEVNULL,
        # what libraries print there must not end up in the caller's output
        stdout=2,
        pass_fds=[theirs.fileno()],
        env={**os.environ, "PYTHONPATH": paths},
    )
    theirs.close()
    return Follower(rank, process, ours)


def follow_rank_0() -> None:
    """Make this process die with the thread that started it, and leave Ctrl-C to rank 0."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # a terminal sends it to all processes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
