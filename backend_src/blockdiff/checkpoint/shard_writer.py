"""Safetensors files of tensors whose shapes are known, filled piece by piece in any order.

Knows the format; knows nothing of what the tensors are.
"""

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockdiff.checkpoint.stored import DTYPES
from blockdiff.weights.headers import INDEX


class NewTensor(NamedTuple):
    """A tensor to be written."""

    name: str
    dtype: str  # as safetensors writes it: F32, BF16, ...
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


class _Place(NamedTuple):
    path: Path
    offset: int
    tensor: NewTensor


class ShardWriter:
    """Files of up to ``shard_bytes`` (or one tensor) each, and their index, in an empty folder."""

    def __init__(self, folder: Path, tensors: Sequence[NewTensor], shard_bytes: int) -> None:
        """Write headers and index; the order of ``tensors`` says which of them share a file."""
        self._missing = sum(tensor.size for tensor in tensors)
        self._places: dict[str, _Place] = {}
        shards = _share_out(tensors, shard_bytes)
        for number, own in enumerate(shards, start=1):
            self._begin(folder / f"model-{number:05}-of-{len(shards):05}.safetensors", own)
        weight_map = {name: place.path.name for name, place in sorted(self._places.items())}
        index = {"metadata": {"total_size": self._missing}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def write(self, name: str, piece: Tensor, start: int = 0) -> None:
        """A piece of a tensor: everything from index ``start`` of its first axis on."""
        path, offset, tensor = self._places[name]
        assert piece.dtype == DTYPES[tensor.dtype] and piece.shape[1:] == tensor.shape[1:], name
        row = tensor.size // tensor.shape[0] if tensor.shape else 0
        # numpy's arrays are buffers, though its types do not say so before Python 3.12
        data: Any = piece.contiguous().reshape(-1).view(torch.uint8).numpy()
        with path.open("r+b") as file:
            file.seek(offset + start * row)
            file.write(memoryview(data))
        self._missing -= piece.nbytes

    def finish(self) -> None:
        """To be called when everything is written."""
        assert self._missing == 0, f"{self._missing} bytes were not written"

    def _begin(self, path: Path, tensors: Sequence[NewTensor]) -> None:
        """A file with its header and as many zeros as its tensors need."""
        # readers want numbers aligned to their size
        ordered = sorted(tensors, key=lambda own: (-DTYPES[own.dtype].itemsize, own.name))
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for own in ordered:
            span = [end, end + own.size]
            header[own.name] = {
                "dtype": own.dtype,
                "shape": list(own.shape),
                "data_offsets": span,
            }
            end = span[1]
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        begin = 8 + len(text)
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(begin + end)
        for own in ordered:
            start = header[own.name]["data_offsets"][0]
            self._places[own.name] = _Place(path, begin + start, own)


def _share_out(tensors: Sequence[NewTensor], limit: int) -> list[list[NewTensor]]:
    """Tensors in order, in groups of up to ``limit`` bytes."""
    shards: list[list[NewTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.size > limit:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.size
    return shards
