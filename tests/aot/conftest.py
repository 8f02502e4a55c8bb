"""Compiling takes minutes, so other tests run beside it.

Alone, it begins as soon as it is known to be wanted. Where tests run in several processes
(pytest-xdist), it begins when a test asks, and the other processes go on meanwhile.
"""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.aot.background import start

_started: list[subprocess.Popen[str]] = []


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start compiling if any test of this folder is going to run."""
    is_own = [Path(__file__).parent in item.path.parents for item in session.items]
    is_one_of_several = hasattr(session.config, "workerinput")
    if any(is_own) and not session.config.option.collectonly and not is_one_of_several:
        # other tests run on one core
        _started.append(start(os.cpu_count() or 1 if all(is_own) else 1))


@pytest.fixture(scope="session")
def compiled() -> list[dict[str, Any]]:
    """The rows that ``python -m tests.aot`` prints."""
    if not _started:
        _started.append(start(1))
    process = _started[0]
    out, _ = process.communicate()
    assert process.returncode == 0, "python -m tests.aot fails; run it to see why"
    return [json.loads(line) for line in out.splitlines()]


def pytest_sessionfinish() -> None:
    """Leave nothing running if the tests ended before they asked."""
    for process in _started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
