"""What loading took: tensors, bytes, seconds, and the host memory it needed at its peak.

Reads Linux's own account of this process; knows nothing of files or models.
"""

import contextlib
import gc
import time
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class LoadReport:
    """One finished load. Bytes are bytes; ``host_peak`` is above what the process had before."""

    tensors: int
    bytes_read: int
    seconds: float
    host_peak: int
    host_bound: int  # weights in host memory plus the largest tensor: never to be exceeded

    def __str__(self) -> str:
        speed = self.bytes_read / max(self.seconds, 1e-9) / 1e9
        return (
            f"loaded {self.tensors} tensors, {_size(self.bytes_read)} in {self.seconds:.1f} s "
            f"({speed:.2f} GB/s); peak host memory {_size(self.host_peak)} above the start, "
            f"weights and largest tensor {_size(self.host_bound)}"
        )


class LoadMeter:
    """Measures from its construction to ``report``."""

    def __init__(self) -> None:
        # Garbage that went away meanwhile would be counted in favour of loading.
        gc.collect()
        # Resets the high-water mark; where that is not allowed the peak reads too high.
        with contextlib.suppress(OSError):
            _RESET.write_text("5")
        self._before = _status("VmRSS")
        self._began = time.monotonic()

    def report(self, tensors: int, bytes_read: int, host_bound: int) -> LoadReport:
        """What happened since; ``host_bound`` in bytes."""
        seconds = time.monotonic() - self._began
        peak = max(0, _status("VmHWM") - self._before)
        return LoadReport(tensors, bytes_read, seconds, peak, host_bound)


def _status(key: str) -> int:
    """A line of the process status, in bytes; 0 where there is none."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return 0


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
