"""Starts ``python -m tests.aot`` beside other tests, so that it ends when they do.

Knows processes; knows nothing of kernels.
"""

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1


def start(workers: int) -> subprocess.Popen[str]:
    """A process of its own, as the tests around it run the interpreter, and a patient one.

    It and its workers are killed when the thread that calls this ends, however it ends.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = ["nice", sys.executable, "-m", "tests.aot", "--workers", str(workers)]
    return subprocess.Popen(
        [*command, "--parent", str(os.getpid())],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def die_with(parent: int) -> None:
    """Have this process killed when the thread of ``parent`` that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
