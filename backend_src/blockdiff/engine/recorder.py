"""How a step that has been run once is run again: as recorded launches, or plainly.

A step is a function of static buffers without arguments. It waits for nothing and allocates by
sizes that the host knew when it was recorded. Knows nothing of what a step computes.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

Step = Callable[[], Sequence[Tensor]]

# libraries choose algorithms and kernels are compiled in the first run
WARM_UP_RUNS = 2


class Recorder(Protocol):
    """Makes steps that can be run again."""

    def capture(self, step: Step) -> Step:
        """``step``, recorded: called, it does the same to the same memory.

        May run ``step`` any number of times. What a replay returns is good until the next one.
        """
        ...

    @property
    def pool_bytes(self) -> int:
        """Device memory that recorded steps hold for what they compute, all together."""
        ...


class PlainRecorder:
    """The twin of a recorder: every replay calls the step itself."""

    pool_bytes = 0

    def capture(self, step: Step) -> Step:
        """See ``Recorder``."""
        return step


class CudaRecorder:
    """Steps as CUDA graphs, which share one memory pool: only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._pool_bytes = 0

    @property
    def pool_bytes(self) -> int:
        """See ``Recorder``; what the device's allocator reserved while steps were captured."""
        return self._pool_bytes

    def capture(self, step: Step) -> Step:
        """See ``Recorder``; other threads may use the device meanwhile."""
        outside = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UP_RUNS):
                step()
        outside.wait_stream(self._stream)
        torch.cuda.synchronize(self._device)
        # capture empties the cache itself, which would hide what it reserves
        torch.cuda.empty_cache()
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.memory_reserved(self._device)
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            results = step()
        self._pool_bytes += torch.cuda.memory_reserved(self._device) - before

        def replay() -> Sequence[Tensor]:
            graph.replay()
            return results

        return replay
