"""Copies between host and device: all arrays of a round at once, one transfer each way.

Knows nothing of what the arrays mean.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.generic]


def to_device(arrays: Mapping[str, Array], device: torch.device) -> dict[str, Tensor]:
    """All arrays as tensors of ``device``; on the host they share the arrays' memory."""
    if device.type == "cpu":
        return {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
    return move_packed(arrays, device)


def move_packed(arrays: Mapping[str, Array], device: torch.device) -> dict[str, Tensor]:
    """All arrays as tensors of ``device``, with one transfer per element kind."""
    moved: dict[str, Tensor] = {}
    for kind in {a.dtype for a in arrays.values()}:
        names = [name for name, a in arrays.items() if a.dtype == kind]
        flat = torch.from_numpy(np.concatenate([arrays[name].ravel() for name in names]))
        if device.type == "cuda":
            flat = flat.pin_memory()
        parts = torch.split(
            flat.to(device, non_blocking=True), [arrays[name].size for name in names]
        )
        for name, part in zip(names, parts, strict=True):
            moved[name] = part.view(arrays[name].shape)
    return moved


def fetch(tensors: Sequence[Tensor]) -> list[npt.NDArray[Any]]:
    """Host copies; tensors of the host share their memory with the arrays."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [tensor.numpy() for tensor in tensors]
    return fetch_packed(tensors)


def fetch_packed(tensors: Sequence[Tensor]) -> list[npt.NDArray[Any]]:
    """Host copies by one transfer, of elements of 4 or 8 bytes."""
    words = [tensor.contiguous().view(-1).view(torch.int32) for tensor in tensors]
    flat = torch.cat(words).cpu()
    parts = flat.split([part.numel() for part in words])
    # a copy has the alignment that 8-byte elements need
    return [
        part.clone().view(tensor.dtype).view(tensor.shape).numpy()
        for part, tensor in zip(parts, tensors, strict=True)
    ]
