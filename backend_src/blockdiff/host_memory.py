"""Memory of this machine. Knows nothing of models or of who needs it."""

import os
from pathlib import Path


def available_memory() -> int:
    """Bytes that can be used without swapping, inside the container's limit."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        free = min(free, limit - used)
    except (OSError, ValueError):
        pass
    return free
