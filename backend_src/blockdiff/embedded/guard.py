"""Stands between a launcher and tritonserver so that nothing is left running.

Run as a file by the launcher; uses only the standard library and knows no model. It ends the
server and every process below it when the launcher closes the pipe on standard input, dies or is
killed, and removes the shared-memory regions of the server. SIGTERM is passed on to the server.

usage: guard.py SHM_PREFIX PROGRAM [ARGUMENT ...]; the first line on standard output is the
server's process id.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SHARED_MEMORY = Path("/dev/shm")
_THREAD_STACK = 256 << 20


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _give_threads_room() -> None:
    """Let threads have large stacks: the 2.51 HTTP frontend parses a form body of 4 MB on one.

    glibc takes the default stack size of threads from this limit (and 2 MB when it is unlimited).
    Address space only; pages are used when touched.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = _THREAD_STACK if hard == resource.RLIM_INFINITY else min(_THREAD_STACK, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))


def _prepare_child() -> None:
    _give_threads_room()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _children() -> list[int]:
    mine = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = Path("/proc", entry, "stat").read_text()
                # The command name may hold spaces and brackets: read after the last bracket.
                state, parent = stat.rsplit(")", 1)[1].split()[:2]
                if int(parent) == os.getpid() and state != "Z":
                    mine.append(int(entry))
    return mine


def _kill_everything(group: int) -> None:
    """Kill the server's group, then whatever was orphaned to us, until there is nothing left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    while True:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _remove_regions(prefix: str) -> None:
    with contextlib.suppress(OSError):
        for path in _SHARED_MEMORY.iterdir():
            if path.name.startswith(prefix):
                path.unlink(missing_ok=True)


def _wait(server: "subprocess.Popen[bytes]", parent: int, wake: int) -> None:
    """Return when the server has ended or the launcher is gone."""
    while server.poll() is None:
        readable, _, _ = select.select([0, wake], [], [], 1.0)
        if wake in readable:
            os.read(wake, 512)
        # Anything on the pipe, its end, or another parent: the launcher wants or needs a kill.
        if 0 in readable or os.getppid() != parent:
            return


def main(prefix: str, command: list[str]) -> int:
    """Run ``command``, wait, clean up, and exit as it did."""
    parent = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        preexec_fn=_prepare_child,
        start_new_session=True,
    )
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    print(server.pid, flush=True)
    _wait(server, parent, read_end)
    code = server.returncode
    _kill_everything(server.pid)
    _remove_regions(prefix)
    if code is None:
        code = -signal.SIGKILL
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
