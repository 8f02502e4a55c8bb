"""Safetensors files of one checkpoint: their tensors by canonical name, from the headers alone.

Checks files (present, whole, as the index says) and gathers every problem before raising. Knows
nothing of which tensors a model needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blockdiff.checkpoint.stored import ReadLog, Shard, StoredTensor
from blockdiff.config import read_json
from blockdiff.errors import ConfigError
from blockdiff.weights.headers import INDEX, SINGLE, check_file_names, read_file_header
from blockdiff.weights.ranges import describe

PREFIXES = ("model.language_model.", "language_model.model.", "model.")
# parts of multimodal and multi-token-prediction checkpoints that text generation never uses
IGNORED = (
    *("mtp.", "visual.", "vision_tower.", "audio_tower."),
    *("encoder.vision_tower.", "encoder.embed_vision."),
)
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class CheckpointFiles:
    """Tensors by canonical name, what reading them will find, and notes on what was left out."""

    tensors: dict[str, StoredTensor]
    shards: tuple[Shard, ...]
    log: ReadLog
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def open_checkpoint(folder: Path) -> CheckpointFiles:
    """Read the headers of all shards of ``folder``; unusable shards become ``problems``."""
    index = _read_index(folder)
    problems: list[str] = []
    tensors: dict[str, StoredTensor] = {}
    ignored: list[str] = []
    shards: list[Shard] = []
    log = ReadLog()
    for name in sorted(set(index.values())) if index else [SINGLE]:
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
            continue
        try:
            shard, headers = Shard(path), read_file_header(path)
        except ConfigError as error:
            reason = str(error).removeprefix(f"{path}: ")
            problems.append(f"{name} is damaged or truncated ({reason})")
            continue
        shards.append(shard)
        here = {header.name for header in headers}
        absent = [tensor for tensor, file in index.items() if file == name and tensor not in here]
        problems += describe(absent, f"is not in {name}, where {INDEX} says it is")
        for header in headers:
            canonical = canonical_name(header.name)
            if canonical.startswith(IGNORED):
                ignored.append(header.name)
            elif canonical in tensors:
                problems.append(f"{header.name} is stored twice")
            else:
                tensors[canonical] = StoredTensor(shard, header, log)
    notes = (f"{len(ignored)} tensors ignored ({ignored[0]}, ...)",) if ignored else ()
    return CheckpointFiles(tensors, tuple(shards), log, notes, tuple(problems))


def canonical_name(name: str) -> str:
    """A tensor name without the prefix that differs between layouts."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def refuse(folder: Path, problems: Sequence[str]) -> None:
    """Raise one ConfigError line listing all ``problems``; do nothing when there are none."""
    if problems:
        raise ConfigError(f"checkpoint {folder} cannot be loaded: {'; '.join(problems)}")


def _read_index(folder: Path) -> Mapping[str, str]:
    """Tensor name -> file as the index says; empty where one file holds everything."""
    if not (folder / INDEX).exists():
        if (folder / SINGLE).exists():
            return {}
        pickles = sorted(path.name for kind in PICKLES for path in folder.glob(kind))
        if pickles:
            raise ConfigError(
                f"checkpoint {folder}: only pickle files ({', '.join(pickles)}); they can run code "
                "when read and are never opened: take or convert to safetensors"
            )
        raise ConfigError(f"checkpoint {folder}: neither {SINGLE} nor {INDEX} is there")
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{folder / INDEX}: weight_map must map tensor names to file names")
    check_file_names(folder, weight_map.values())
    return weight_map
