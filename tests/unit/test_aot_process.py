"""Compiling in the background ends with the tests it was started for, even if they are killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

PARENT = """
import time
from tests.aot.background import start
print(start(1).pid, flush=True)
time.sleep(600)
"""
SECONDS = 30.0


def children(process: int) -> set[int]:
    """Of its main thread."""
    try:
        return set(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))
    except FileNotFoundError:
        return set()


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    # a zombie waits for whoever inherits it
    return state[0] not in "ZX"


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"not within {SECONDS} s: {what}"
        time.sleep(0.05)


@pytest.mark.slow
def test_background_compiling_ends_when_the_tests_are_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    compiling = int(parent.stdout.readline())
    try:
        # its worker and multiprocessing's tracker of resources
        wait_for("workers", lambda: len(children(compiling)) >= 2)
        started = {compiling, *children(compiling)}
        parent.send_signal(signal.SIGKILL)
        wait_for("the end", lambda: not any(map(is_running, started)))
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        with suppress(ProcessLookupError):
            os.killpg(compiling, signal.SIGKILL)
