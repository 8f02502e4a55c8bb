"""Device memory that every replay of a step reads at the same addresses, filled by one transfer.

Knows names, types and sizes of arrays; knows nothing of what they mean.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from blockdiff.transfer import Array

# each array begins at a multiple of so many bytes, as loads of vectors need it
ALIGNMENT = 16


class StaticBuffers:
    """Tensors of one memory block, and its twin on the host that arrays are laid into."""

    def __init__(self, like: Mapping[str, Array], device: torch.device) -> None:
        """Room for arrays of the names, types and shapes of ``like``."""
        starts, size = {}, 0
        for name, array in like.items():
            starts[name] = size
            size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        is_cuda = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=is_cuda)
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._places = {
            name: _host_view(self._host, starts[name], array) for name, array in like.items()
        }
        self.tensors: Mapping[str, Tensor] = {
            name: _device_view(self._device, starts[name], array) for name, array in like.items()
        }
        self._copied = torch.cuda.Event() if is_cuda else None

    @property
    def nbytes(self) -> int:
        """Of the memory on the device."""
        return self._device.numel()

    def fill(self, arrays: Mapping[str, Array]) -> None:
        """Copy ``arrays``, which are all of them, to the device; waits only for the last copy."""
        assert arrays.keys() == self._places.keys(), "a step has the same arrays every time"
        if self._copied is not None:
            self._copied.synchronize()
        for name, array in arrays.items():
            place = self._places[name]
            assert array.shape == place.shape and array.dtype == place.dtype, name
            place[...] = array
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


def lay(array: Array, room: Array) -> None:
    """Put ``array`` into the first corner of ``room``."""
    room[tuple(slice(size) for size in array.shape)] = array


def _host_view(block: Tensor, start: int, like: Array) -> Array:
    part: Array = block.numpy()[start : start + like.nbytes].view(like.dtype)
    return part.reshape(like.shape)


def _device_view(block: Tensor, start: int, like: Array) -> Tensor:
    dtype = torch.from_numpy(np.empty(0, like.dtype)).dtype
    return block[start : start + like.nbytes].view(dtype).view(like.shape)
