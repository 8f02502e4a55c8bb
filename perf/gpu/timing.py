"""How long something takes on a device: the median of runs that find no data in its caches.

Knows events and buffers; knows nothing of what runs.
"""

import statistics
import time
from collections.abc import Callable
from typing import Protocol

import torch

# more than the second-level cache of any GPU so far
FLUSHED_BYTES = 256 << 20
WARM_UP_RUNS = 3
RUNS = 15


class Timer(Protocol):
    """Measures one thing after the other."""

    def seconds(self, work: Callable[[], object], runs: int = RUNS) -> float | None:
        """Median seconds of ``work``; None where times mean nothing."""
        ...


class CudaTimer:
    """By the device's own events; the cache is overwritten before every run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=device)

    def seconds(self, work: Callable[[], object], runs: int = RUNS) -> float | None:
        """See ``Timer``."""
        for _ in range(WARM_UP_RUNS):
            work()
        pairs = []
        for _ in range(runs):
            self._flushed.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize(self._device)
        return statistics.median(begin.elapsed_time(end) for begin, end in pairs) / 1e3


class NoTimer:
    """Runs once, where kernels are interpreted."""

    def seconds(self, work: Callable[[], object], runs: int = RUNS) -> float | None:
        """See ``Timer``."""
        work()
        return None


class Deadline:
    """How much time is left, and what was left out, for want of it or for another reason."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self.left_out: list[str] = []

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - self._clock()

    def allows(self, name: str, seconds: float = 0.0) -> bool:
        """Whether there is time for ``name``, which takes about ``seconds``; notes it if not."""
        if self.left > seconds:
            return True
        self.left_out.append(name)
        return False
