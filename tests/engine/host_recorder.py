"""A recorder without a device: replays run the step again and prove that a graph would do the same.

It refuses what capture forbids (waiting for the device, sizes that depend on contents, numbers from
the host) and any replay that does other operations, or the same ones to other memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from blockdiff.engine.recorder import Step

READING_METHODS = frozenset({"cpu", "tolist", "numpy", "item", "__bool__", "__int__", "__index__"})
REFUSED = frozenset(
    {
        "_local_scalar_dense",
        "_unique2",
        "bincount",
        "histc",
        "lift_fresh",
        "masked_select",
        "nonzero",
        "repeat_interleave.Tensor",
        "repeat_interleave.self_Tensor",
        "unique_dim",
    }
)

# operation, then shape and type of every tensor, and the address of those the step did not make
Launch = tuple[str, tuple[tuple[tuple[int, ...], torch.dtype, int], ...]]


class CaptureError(Exception):
    """What a device would refuse to capture, or would replay wrongly."""


class _Methods(TorchFunctionMode):
    """Refuses methods that bring numbers to the host."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in READING_METHODS:
            raise CaptureError(f"{name} waits for the device")
        return function(*args, **(kwargs or {}))


class _Launches(TorchDispatchMode):
    """Notes every operation; tensors made inside have addresses of no importance."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Launch] = []
        self._outer: set[int] = set()
        self._inner: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        self._refuse(name, f"{name}.{function._overloadname}", args)
        seen = tuple(self._describe(own) for own in _tensors((args, kwargs)))
        self.noted.append((name, seen))
        results = function(*args, **(kwargs or {}))
        made = {own.untyped_storage().data_ptr() for own in _tensors(results)}
        self._inner |= made - self._outer
        return results

    def _refuse(self, name: str, overload: str, args: Sequence[Any]) -> None:
        if REFUSED & {name, overload}:
            raise CaptureError(f"{name} waits for the device")
        indices = args[1] if name.startswith("index") and isinstance(args[1], list | tuple) else ()
        if any(own is not None and own.dtype == torch.bool for own in indices):
            raise CaptureError(f"{name} by flags has a size that depends on contents")

    def _describe(self, own: Tensor) -> tuple[tuple[int, ...], torch.dtype, int]:
        storage = own.untyped_storage().data_ptr()
        if storage in self._inner:
            return tuple(own.shape), own.dtype, 0
        self._outer.add(storage)
        return tuple(own.shape), own.dtype, own.data_ptr()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _watched(step: Step) -> tuple[Sequence[Tensor], list[Launch]]:
    launches = _Launches()
    with _Methods(), launches:
        results = step()
    return results, launches.noted


class HostRecorder:
    """See the module."""

    pool_bytes = 0

    def capture(self, step: Step) -> Step:
        """As ``blockdiff.engine.recorder.Recorder``; CaptureError for what cannot be captured."""
        # what a first run makes and keeps is there when a device captures
        step()
        results, launches = _watched(step)

        def replay() -> Sequence[Tensor]:
            found, own = _watched(step)
            for place, (wanted, got) in enumerate(zip(launches, own, strict=False)):
                if wanted != got:
                    raise CaptureError(f"operation {place} was {wanted}, is {got}")
            if len(own) != len(launches):
                raise CaptureError(f"{len(own)} operations instead of {len(launches)}")
            # what a graph returns lies where it always does
            for mine, theirs in zip(results, found, strict=True):
                mine.copy_(theirs)
            return results

        return replay
