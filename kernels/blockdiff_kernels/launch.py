"""How Triton kernels are started, or only looked at: compiled ahead of time for a GPU not here.

Every kernel is started by ``launch``, so that what is compiled in advance is what will run: its
``Recorder`` gets the same arguments, of tensors that may have no memory (device ``meta``). Knows
nothing of any op.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels run on the host, instruction by instruction. Read when triton is imported."""
HOPPER = (9, 0)

if IS_INTERPRETED:
    from blockdiff_kernels.interpreter import install

    install()


class Launch(NamedTuple):
    """One start of a kernel."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    options: Mapping[str, int]


class Recorder(NamedTuple):
    """Gets launches instead of the device."""

    capability: tuple[int, int]
    record: Callable[[Launch], None]


_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Kernels are handed to ``recorder`` inside, and nothing is computed."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: Mapping[str, Any],
    num_warps: int = 4,
    num_stages: int = 1,
) -> None:
    """Start ``kernel`` on ``grid`` with ``arguments`` by name, constants included.

    Tensors without memory (device ``meta``) have nothing to compute, as with torch's own ops.
    """
    # a product and the sum that follows it are one operation, whatever a release's default is
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    recorder = _recorder.get()
    if recorder is not None:
        recorder.record(Launch(kernel, grid, arguments, options))
    elif all(grid) and not any(map(_is_meta, arguments.values())):
        kernel[grid](**arguments, **options)


def _is_meta(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def capability(like: Tensor) -> tuple[int, int]:
    """Of the device that a kernel for ``like`` runs on; interpreted ones get Hopper's tiles."""
    recorder = _recorder.get()
    if recorder is not None:
        return recorder.capability
    return torch.cuda.get_device_capability(like.device) if like.is_cuda else HOPPER


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """The operand type of products of ``dtype`` activations, for a kernel's ``DOT``."""
    types = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    return types[dtype]


def ceil_div(count: int, size: int) -> int:
    """Tiles of ``size`` that ``count`` needs."""
    return -(-count // size)


def power_of_two(count: int) -> int:
    """The least power of two from ``count`` on: sides of tiles are such."""
    return int(triton.next_power_of_2(count))
