"""Steps over static buffers: what may be captured, and that replays are the rounds they stand for.

Replays are run without a device, by ``host_recorder``. Run: pytest tests/engine/test_step_runner.py
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from blockdiff.engine.recorder import PlainRecorder, Recorder
from blockdiff.engine.step_runner import StepRunner

from .host_recorder import CaptureError, HostRecorder

CPU = torch.device("cpu")
ARRAYS = {
    "ids": np.arange(5),
    "shares": np.full((2, 3), 0.5, np.float32),
    "flags": np.array([True, False, True]),
    "pages": np.arange(7, dtype=np.int32),
}


def both(moved: Mapping[str, Tensor]) -> Sequence[Tensor]:
    return [moved["ids"] * 2 + moved["pages"][:5], moved["shares"].sum() * moved["flags"]]


@pytest.mark.parametrize("recorder", [PlainRecorder(), HostRecorder()])
def test_a_replay_sees_what_the_buffers_were_filled_with(recorder: Recorder) -> None:
    runner = StepRunner(recorder, CPU)
    runner.capture("key", ARRAYS, both)
    assert "key" in runner and "other" not in runner
    later = {name: array[::-1].copy() for name, array in ARRAYS.items()}
    later["shares"] += 1
    for arrays in (ARRAYS, later, ARRAYS):
        doubled, weighed = runner.run("key", arrays)
        assert doubled.tolist() == (arrays["ids"] * 2 + arrays["pages"][:5]).tolist()
        assert weighed.tolist() == (arrays["shares"].sum() * arrays["flags"]).tolist()


@pytest.mark.parametrize(
    "arrays",
    [
        {name: array for name, array in ARRAYS.items() if name != "flags"},
        ARRAYS | {"ids": np.arange(6)},
        ARRAYS | {"ids": np.arange(5, dtype=np.int32)},
    ],
)
def test_buffers_keep_their_sizes(arrays: dict[str, np.ndarray]) -> None:
    runner = StepRunner(PlainRecorder(), CPU)
    runner.capture("key", ARRAYS, both)
    with pytest.raises(AssertionError):
        runner.run("key", arrays)


FORBIDDEN: list[Callable[[Tensor], Tensor]] = [
    lambda ids: ids * ids.max().item(),
    lambda ids: ids.new_zeros(int(ids[1])),
    lambda ids: ids[ids > 2],
    lambda ids: ids.nonzero(),
    lambda ids: ids.cpu(),
    lambda ids: ids + torch.tensor([1, 2, 3, 4, 5]),
    lambda ids: torch.bincount(ids),
    lambda ids: ids if ids.any() else ids + 1,
    lambda ids: ids + len(ids.tolist()),
]


@pytest.mark.parametrize("function", FORBIDDEN)
def test_what_waits_for_the_device_cannot_be_captured(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(CaptureError):
        StepRunner(HostRecorder(), CPU).capture(
            "key", ARRAYS, lambda moved: [function(moved["ids"])]
        )


def test_a_replay_must_do_the_same_to_the_same_memory() -> None:
    stores, rows = [torch.zeros(5, dtype=torch.int64) for _ in range(2)], [5, 5]
    wheres = iter([stores[0], stores[0], stores[0], stores[1]])
    runner = StepRunner(HostRecorder(), CPU)
    runner.capture("memory", ARRAYS, lambda moved: [next(wheres).add_(moved["ids"])])
    runner.run("memory", ARRAYS)
    with pytest.raises(CaptureError):
        runner.run("memory", ARRAYS)
    runner.capture("size", ARRAYS, lambda moved: [moved["ids"][: rows[0]] + 1])
    rows[0] = 4
    with pytest.raises(CaptureError):
        runner.run("size", ARRAYS)
