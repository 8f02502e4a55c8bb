"""Whether /dev/shm has room for the regions of Triton's Python stubs. Starts nothing."""

import os
from pathlib import Path

from blockdiff.errors import ConfigError

FOLDER = Path("/dev/shm")
# Each stub takes 1 MiB at once and grows with the tensors in flight.
NEEDED = 16 << 20
COMFORTABLE = 64 << 20


def shared_memory_free() -> int:
    """Bytes free in /dev/shm; 0 when it is missing."""
    try:
        found = os.statvfs(FOLDER)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def require_shared_memory() -> None:
    """Refuse to start where the Python backend would die for lack of shared memory."""
    free = shared_memory_free()
    if free < NEEDED:
        raise ConfigError(
            f"/dev/shm: {free >> 20} MiB free, {NEEDED >> 20} MiB needed; "
            "enlarge it (docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm)"
        )
