"""Runs steps over static buffers: each is captured once, then filled and replayed.

Knows nothing of models or rounds; a step is named by whatever its sizes follow from.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff.engine.recorder import Recorder, Step
from blockdiff.engine.static_buffers import StaticBuffers
from blockdiff.transfer import Array

# device tensors by name -> what the host wants to see
StepFunction = Callable[[Mapping[str, Tensor]], Sequence[Tensor]]


class _Captured(NamedTuple):
    buffers: StaticBuffers
    replay: Step


class StepRunner:
    """Captured steps by key."""

    def __init__(self, recorder: Recorder, device: torch.device) -> None:
        self._recorder = recorder
        self._device = device
        self._steps: dict[Hashable, _Captured] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._steps

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def nbytes(self) -> int:
        """Device memory of all steps: their buffers and what they compute in."""
        buffers = sum(step.buffers.nbytes for step in self._steps.values())
        return buffers + self._recorder.pool_bytes

    def capture(self, key: Hashable, arrays: Mapping[str, Array], function: StepFunction) -> None:
        """Record ``function`` as step ``key``; it may run, with ``arrays``, any number of times."""
        assert key not in self._steps, key
        buffers = StaticBuffers(arrays, self._device)
        buffers.fill(arrays)
        replay = self._recorder.capture(lambda: function(buffers.tensors))
        self._steps[key] = _Captured(buffers, replay)

    def run(self, key: Hashable, arrays: Mapping[str, Array]) -> Sequence[Tensor]:
        """What step ``key`` makes of ``arrays``; the tensors are good until the next step."""
        step = self._steps[key]
        step.buffers.fill(arrays)
        return step.replay()
