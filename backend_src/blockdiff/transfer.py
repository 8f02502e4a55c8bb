"""Copies between host and device: all arrays of a round at once, one transfer each way.

Knows nothing of what the arrays mean.
"""

from collections.abc import Mapping, Sequence

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


def fetch(tensors: Sequence[Tensor]) -> list[npt.NDArray[np.float64]]:
    """Host copies as float64, by one transfer; integers are exact up to 2 ** 53."""
    flat = torch.cat([tensor.double().flatten() for tensor in tensors]).cpu().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
