"""Whether processes are still there. Holds no tests."""

import time
from collections.abc import Callable
from pathlib import Path

# a busy machine may be slow; a real hang would last for minutes
SOON_SECONDS = 20.0


def is_running(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped by whoever adopted it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def children_of(pid: int) -> list[int]:
    """Processes started by any thread of ``pid``."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def wait_until(is_true: Callable[[], object], what: str, seconds: float = SOON_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)
