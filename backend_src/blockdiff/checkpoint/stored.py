"""One stored tensor, read from its file in bounded pieces straight to where it is needed.

Files are read, never mapped: a loaded model shares no byte with its files, so a file that changes
later cannot change a running server, and no page of a file counts as memory of the process.
Knows nothing of which tensors a model needs.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from blockdiff.checkpoint.finite import is_finite
from blockdiff.errors import ConfigError
from blockdiff.weights.hashing import FileState
from blockdiff.weights.headers import TensorHeader

PIECE_BYTES = 8 << 20
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
Place = tuple[slice, ...]


@dataclass
class ReadLog:
    """What reading has found so far. Filled by the tensors that share it."""

    bytes_read: int = 0
    bytes_kept: int = 0  # less than what was read where only some columns were wanted
    not_finite: set[str] = field(default_factory=set)
    on_bytes: Callable[[int], None] | None = None  # called with ``bytes_read``

    def note(self, read: int, kept: int) -> None:
        self.bytes_read += read
        self.bytes_kept += kept
        if self.on_bytes is not None:
            self.on_bytes(self.bytes_read)


class Shard:
    """A file of tensors; opened by the first read, refused when it is no longer what it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = FileState.of(path)
        self._file: IO[bytes] | None = None

    def require_unchanged(self) -> None:
        """Refuse what was read when the file was replaced or written to meanwhile."""
        if self._file is not None and FileState.of(self.path) != self._state:
            raise ConfigError(f"{self.path}: changed while it was loaded; load it again")

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill ``target`` with the bytes from ``offset`` on."""
        try:
            if self._file is None:
                self._file = self.path.open("rb", buffering=0)
                self.require_unchanged()
            while target:
                count = os.preadv(self._file.fileno(), [target], offset)
                if count == 0:
                    raise ConfigError(f"{self.path}: became shorter while it was loaded")
                target, offset = target[count:], offset + count
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read ({error.strerror})") from None


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies and what it looks like."""

    shard: Shard
    header: TensorHeader
    log: ReadLog

    @property
    def stored_name(self) -> str:
        return self.header.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.header.shape

    @property
    def dtype(self) -> str:
        """As safetensors writes it: F32, BF16, ..."""
        return self.header.dtype

    def read(self, place: Place = ()) -> Tensor:
        """The tensor, or only the ``place`` in it, in its stored dtype, on the CPU."""
        target = torch.empty(self._shape_of(place), dtype=DTYPES[self.dtype])
        self.read_into(target, place)
        return target

    def read_into(self, target: Tensor, place: Place = ()) -> None:
        """Write the tensor, or the ``place`` in it, to ``target`` of that shape.

        ``target`` may have any dtype, strides and device. At most ``PIECE_BYTES``, or one row of
        the first axis, are held besides it.
        """
        shape = self._shape_of(place)
        assert tuple(target.shape) == shape, "target and place differ in shape"
        if target.is_meta or target.numel() == 0:
            return
        if not self.shape:
            self._copy(target.view(1), (1,), self.header.offset, ())
            return
        spans = [(s.start, s.stop) for s in self._normal(place)]
        offset, axis = self.header.offset, 0
        size = DTYPES[self.dtype].itemsize
        # Axes cut to one index only move the beginning.
        while axis < len(spans) - 1 and shape[axis] == 1:
            offset += spans[axis][0] * math.prod(self.shape[axis + 1 :]) * size
            target, axis = target[0], axis + 1
        inner = self.shape[axis + 1 :]
        row = math.prod(inner) * size
        step = max(1, PIECE_BYTES // row)
        first, last = spans[axis]
        cut = tuple(slice(*span) for span in spans[axis + 1 :])
        for start in range(first, last, step):
            count = min(step, last - start)
            rows = target[start - first : start - first + count]
            self._copy(rows, (count, *inner), offset + start * row, cut)

    def _copy(self, target: Tensor, shape: tuple[int, ...], offset: int, cut: Place) -> None:
        """Rows that lie together in the file, of which ``cut`` (of the later axes) is wanted."""
        kind = DTYPES[self.dtype]
        is_whole = tuple(target.shape) == shape
        is_direct = is_whole and target.is_contiguous() and target.dtype == kind
        is_direct = is_direct and target.device.type == "cpu"
        piece = target if is_direct else torch.empty(shape, dtype=kind)
        # numpy's arrays are buffers, though its types do not say so before Python 3.12
        data: Any = piece.reshape(-1).view(torch.uint8).numpy()
        self.shard.read_into(memoryview(data), offset)
        if not is_finite(piece):
            self.log.not_finite.add(self.stored_name)
        if not is_direct:
            target.copy_(piece if is_whole else piece[(slice(None), *cut)])
        self.log.note(piece.nbytes, target.numel() * kind.itemsize)

    def _normal(self, place: Place) -> list[slice]:
        whole = (slice(None),) * (len(self.shape) - len(place))
        return [
            slice(*own.indices(length)[:2])
            for own, length in zip((*place, *whole), self.shape, strict=True)
        ]

    def _shape_of(self, place: Place) -> tuple[int, ...]:
        return tuple(own.stop - own.start for own in self._normal(place))
