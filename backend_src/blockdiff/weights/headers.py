"""Headers of safetensors files: names, dtypes, shapes and sizes, without reading a tensor.

Needs neither torch nor the tensors' bytes. Knows nothing of which tensors a model needs.
"""

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdiff.config import read_json
from blockdiff.errors import ConfigError
from blockdiff.weights.hashing import FileState

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SUFFIX = ".safetensors"
_LONGEST_NAME = 255  # bytes of a file name
# The format's own limit; a larger length is a file that is not safetensors.
LONGEST_HEADER = 100_000_000
BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


@dataclass(frozen=True)
class TensorHeader:
    """One stored tensor."""

    name: str
    file: str
    dtype: str  # as safetensors writes it: F32, BF16, ...
    shape: tuple[int, ...]
    size: int  # bytes
    offset: int  # of its first byte in the file

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def read_headers(path: Path) -> list[TensorHeader]:
    """Every tensor of a checkpoint folder, or of one safetensors file, in order of the names."""
    if path.is_file():
        return sorted(read_file_header(path), key=lambda tensor: tensor.name)
    if not path.is_dir():
        raise ConfigError(f"{path}: not found; give a checkpoint folder or a {SUFFIX} file")
    found: dict[str, TensorHeader] = {}
    for name in shard_names(path):
        for tensor in read_file_header(path / name):
            if tensor.name in found:
                first = found[tensor.name].file
                raise ConfigError(f"{path}: {tensor.name} is stored twice, in {first} and {name}")
            found[tensor.name] = tensor
    return [found[name] for name in sorted(found)]


def shard_names(folder: Path) -> list[str]:
    """The files that hold the tensors: those of the index, else the single one, else all."""
    if not (folder / INDEX).exists():
        if (folder / SINGLE).exists():
            return [SINGLE]
        names = sorted(path.name for path in folder.glob(f"*{SUFFIX}"))
        if not names:
            raise ConfigError(f"{folder}: has neither {INDEX} nor any {SUFFIX} file")
        return names
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{folder / INDEX}: weight_map must map tensor names to file names")
    check_file_names(folder, weight_map.values())
    files = set(weight_map.values())
    for name in files:
        if not (folder / name).is_file():
            raise ConfigError(f"{folder}: {name} is missing; {INDEX} names it")
    return sorted(files)


def check_file_names(folder: Path, names: Iterable[Any]) -> None:
    """Raise ConfigError where what an index names cannot be files beside it."""
    for name in names:
        is_plain = isinstance(name, str) and name == Path(name).name and name not in ("", "..")
        if not is_plain or len(_printable(name).encode()) > _LONGEST_NAME:
            raise ConfigError(f"{folder / INDEX}: weight_map may only name files beside it")


def _printable(name: str) -> str:
    """Lone surrogates and the like as escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def read_file_header(path: Path) -> list[TensorHeader]:
    """The tensors of one file; a header that does not fit the file is a ConfigError."""
    # opening a pipe would wait for a writer
    size = FileState.of(path).size
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            text = file.read(length) if 2 <= length <= LONGEST_HEADER else b""
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    if len(text) < 2 or len(text) != length:
        raise ConfigError(f"{path}: damaged or truncated; {size} bytes hold no whole header")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: damaged; its header is not JSON") from None
    if not isinstance(header, dict):
        raise ConfigError(f"{path}: damaged; its header is not a JSON object")
    header.pop("__metadata__", None)
    tensors = [_tensor(path, name, entry, 8 + length) for name, entry in header.items()]
    needed = 8 + length
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.size)):
        if tensor.offset != needed:
            raise ConfigError(f"{path}: damaged; {tensor.name} overlaps another or leaves a hole")
        needed += tensor.size
    if needed != size:
        what = "truncated" if size < needed else "damaged"
        raise ConfigError(f"{path}: {what}; it has {size} bytes, its header needs {needed}")
    return tensors


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> TensorHeader:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        start, end = entry["data_offsets"]
        if any(type(n) is not int or n < 0 for n in (*shape, start, end)):
            raise ValueError("negative or not whole")
        bits = BITS[dtype] * math.prod(shape)
        name.encode("utf-8")
    except (KeyError, TypeError, ValueError):
        shown = _printable(name)
        raise ConfigError(f"{path}: damaged; the header's entry of {shown} is not valid") from None
    if bits != 8 * (end - start):
        raise ConfigError(f"{path}: damaged; {name} has {end - start} bytes for {bits // 8}")
    return TensorHeader(name, path.name, dtype, shape, end - start, data_start + start)
