"""Safetensors files of one checkpoint, memory-mapped, with canonical tensor names.

Checks files (present, whole, readable) and gathers every problem before raising. Knows nothing of
which tensors a model needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from blockdiff.config import read_json
from blockdiff.errors import ConfigError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PREFIXES = ("model.language_model.", "language_model.model.", "model.")
# parts of multimodal and multi-token-prediction checkpoints that text generation never uses
IGNORED = (
    *("mtp.", "visual.", "vision_tower.", "audio_tower."),
    *("encoder.vision_tower.", "encoder.embed_vision."),
)
SHOWN_PROBLEMS = 8


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies and what it looks like."""

    file: Any  # an open safe_open handle
    stored_name: str
    shape: tuple[int, ...]
    dtype: str  # as safetensors writes it: F32, BF16, ...

    def read(self, place: tuple[slice, ...] = ()) -> Tensor:
        """The tensor, or only the ``place`` in it, in its stored dtype, on the CPU."""
        tensor: Tensor = (
            self.file.get_slice(self.stored_name)[place]
            if place
            else self.file.get_tensor(self.stored_name)
        )
        return tensor


@dataclass(frozen=True)
class CheckpointFiles:
    """Tensors by canonical name, and notes on what was left out."""

    tensors: dict[str, StoredTensor]
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def open_checkpoint(folder: Path) -> CheckpointFiles:
    """Open all shards of ``folder``; unusable shards become ``problems``."""
    files, problems = _shards(folder)
    tensors: dict[str, StoredTensor] = {}
    ignored: list[str] = []
    for name in files:
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
            continue
        try:
            shard = _read_shard(path)
        except (SafetensorError, OSError, ValueError) as error:
            problems.append(f"{name} is damaged or truncated ({_one_line(error)})")
            continue
        for stored in shard:
            canonical = canonical_name(stored.stored_name)
            if canonical.startswith(IGNORED):
                ignored.append(stored.stored_name)
            elif canonical in tensors:
                problems.append(f"{stored.stored_name} is stored twice")
            else:
                tensors[canonical] = stored
    notes = (f"{len(ignored)} tensors ignored ({ignored[0]}, ...)",) if ignored else ()
    return CheckpointFiles(tensors, notes, tuple(problems))


def canonical_name(name: str) -> str:
    """A tensor name without the prefix that differs between layouts."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def refuse(folder: Path, problems: Sequence[str]) -> None:
    """Raise one ConfigError line listing ``problems``; do nothing when there are none."""
    if problems:
        more = len(problems) - SHOWN_PROBLEMS
        shown = "; ".join(problems[:SHOWN_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        raise ConfigError(f"checkpoint {folder} cannot be loaded: {shown}")


def _shards(folder: Path) -> tuple[list[str], list[str]]:
    """File names that hold the tensors, and problems of the index."""
    if not (folder / INDEX).exists():
        if (folder / SINGLE).exists():
            return [SINGLE], []
        raise ConfigError(f"checkpoint {folder}: neither {SINGLE} nor {INDEX} is there")
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{folder / INDEX}: weight_map must map tensor names to file names")
    names = list(dict.fromkeys(weight_map.values()))
    if any(not isinstance(n, str) or Path(n).name != n for n in names):
        raise ConfigError(f"{folder / INDEX}: weight_map may only name files beside it")
    return sorted(names), []


def _read_shard(path: Path) -> list[StoredTensor]:
    # safetensors ships no types for what its handle can do
    handle: Any = safe_open(str(path), framework="pt")
    found = []
    for name in handle.keys():  # noqa: SIM118
        piece = handle.get_slice(name)
        found.append(StoredTensor(handle, name, tuple(piece.get_shape()), piece.get_dtype()))
    return found


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
