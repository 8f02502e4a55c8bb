"""A round waits for the device once: whatever it decides, its results come by one copy.

Everything runs on the host here; what would wait for a device is counted as if it were one. One
thing may ask again: insert and delete editing, when a block repeats itself and a place needs
another token.
Run: pytest tests/engine/test_host_copies.py
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from blockdiff.checkpoint import load_model
from blockdiff.core import Mode
from blockdiff.decoding.acceptance import ALGORITHMS
from blockdiff.engine import Engine, EngineConfig
from blockdiff.transfer import fetch_packed, move_packed
from blockdiff_kernels.head import keeping
from blockdiff_kernels.implementation import using

from .checkpoint import CANVAS_CHECKPOINT
from .fakes import HashModel, info, request

DEVICE_ARRAYS = (
    "adjustments",
    "uniform",
    "row_rules",
    "fused_choice",
    "device_blocks",
    "device_canvases",
)
READING_METHODS = ("cpu", "tolist", "item", "__bool__", "__int__", "__float__", "__index__")
READING_OPERATIONS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2")


class Reads(TorchDispatchMode):
    """Counts what makes the host wait for a device, but for what the model itself does."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.names: list[str] = []
        self._is_paused = False
        for name in READING_METHODS:
            patch.setattr(Tensor, name, self._counted(name, getattr(Tensor, name)))

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def count(tensor: Tensor, *values: Any, **named: Any) -> Any:
            self._note(name)
            return method(tensor, *values, **named)

        return count

    def _note(self, name: str) -> None:
        if not self._is_paused:
            self.names.append(name)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        indices = args[1] if name.startswith("index") and isinstance(args[1], list | tuple) else ()
        has_flags = any(index is not None and index.dtype == torch.bool for index in indices)
        if name in READING_OPERATIONS or has_flags:
            self._note(name)
        return function(*args, **(kwargs or {}))

    def uncounted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same for what is the model's own business."""

        def run(*values: Any, **named: Any) -> Any:
            self._is_paused = True
            result = function(*values, **named)
            self._is_paused = False
            return result

        return run


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Counts from now on; both ways of a round's arrays are those of a device."""
    for name in DEVICE_ARRAYS:
        monkeypatch.setattr(f"blockdiff.engine.{name}.to_device", move_packed)
    for name in ("uniform.fetch", "forward.fetch"):
        monkeypatch.setattr(f"blockdiff.engine.{name}", fetch_packed)
    return Reads(monkeypatch)


def check_rounds(engine: Engine, reads: Reads, patch: pytest.MonkeyPatch) -> None:
    """Runs until there is nothing to do; every round reads once, or not at all without groups."""
    for owner, name in ((engine.model, "hidden"), (engine._caches, "prepare")):
        patch.setattr(owner, name, reads.uncounted(getattr(owner, name)))
    rounds = 0
    with reads:
        while engine.has_work:
            reads.names.clear()
            results = engine.step()
            assert all(result.error is None for result in results)
            assert reads.names in (["cpu"], []), f"round {rounds}"
            rounds += reads.names == ["cpu"]
    assert rounds > 2


@pytest.mark.parametrize("kernels", ["auto", "triton"])
def test_masked_canvases(kernels: str, reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    model = HashModel(info(algorithms=ALGORITHMS, supports_editing=True))
    engine = Engine(model, EngineConfig(max_slots=9, max_context=64))
    monkeypatch.setattr(keeping, "PASSES", 2)
    ways: list[dict[str, Any]] = [
        {},
        {"min_tokens": 5},
        {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "min_tokens": 3},
        {"denoise_steps": 2},
        {"algorithm": "sequential"},
        {"algorithm": "entropy_bounded", "entropy_bound": 0.5},
        {"editing_threshold": 0.3, "max_post_steps": 2},
        {"mode": Mode.AUTOREGRESSIVE},
        {"presence_penalty": 1.0, "temperature": 0.5, "min_p": 0.1, "num_top_log_probs": 3},
    ]
    for uid, fields in enumerate(ways):
        engine.add_request(request(uid, range(1, 4 + uid), max_tokens=11, **fields))
    with using(kernels):
        check_rounds(engine, reads, monkeypatch)


@pytest.mark.parametrize("kernels", ["auto", "head=triton,denoise=triton"])
def test_random_canvases_and_their_statistics(
    kernels: str, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockdiff.engine.statistics.PUBLISH_SECONDS", 0.0)
    config = EngineConfig(max_slots=2, max_context=64, expert_statistics_interval=1)
    engine = Engine(load_model(CANVAS_CHECKPOINT), config)
    for uid in range(2):
        prompt = range(1, 4 + uid)
        engine.add_request(request(uid, prompt, max_tokens=11, min_tokens=3, denoise_steps=2))
    with using(kernels):
        check_rounds(engine, reads, monkeypatch)
    assert engine.expert_counts is not None
    assert engine.expert_counts.rounds == engine.counters.rounds
