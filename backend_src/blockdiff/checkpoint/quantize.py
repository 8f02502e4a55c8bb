"""A checkpoint folder in high precision -> one with quantised projections, in a public format.

Reads and writes in pieces, so memory grows neither with the model nor with a tensor.
The same source gives the same bytes. Knows nothing of families.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blockdiff.checkpoint.conversion import convert, plan_tensors, quantised_names
from blockdiff.checkpoint.load import CheckedCheckpoint, check_files
from blockdiff.checkpoint.reader import refuse
from blockdiff.checkpoint.scheme import HIGH_PRECISION, Scheme
from blockdiff.checkpoint.shard_writer import ShardWriter
from blockdiff.config import read_json
from blockdiff.config.quantization import KEY
from blockdiff.errors import ConfigError
from blockdiff.weights.headers import INDEX
from blockdiff.weights.manifest import MANIFEST, read_manifest_with_digest, write_manifest
from blockdiff.weights.ranges import describe

SHARD_BYTES = 4 << 30
# files of other weight formats, and those that are written anew
_LEFT_OUT = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
_LAYOUTS = {"int4": "pack-quantized", "int8": "int-quantized", "fp8": "float-quantized"}
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class QuantizedCopy:
    """What was written: its group size, if any, the tensors' bytes, and which weights they are."""

    group: int | None
    source_bytes: int
    target_bytes: int
    manifest_sha256: str


def quantize_checkpoint(
    source: Path, target: Path, scheme: Scheme, progress: Progress | None = None
) -> QuantizedCopy:
    """Write ``target``, whole or not at all; ConfigError for what cannot be read or quantised.

    int4 without a group size takes the largest one that divides the inputs of every projection.
    ``progress`` is called with (elements done, elements in all).
    """
    checked = check_files(source)
    if checked.quantized is not None:
        raise ConfigError(f"{source}: is already quantised; give the checkpoint it was made from")
    _check_target(source, target)
    scheme = _for_every_module(checked, scheme)
    config = {**read_json(source / "config.json"), KEY: declare(scheme)}
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        written = _write_shards(partial, checked, scheme, progress)
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        _copy_others(source, partial)
        _write_manifest(source, partial, scheme)
        partial.rename(target)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    read = sum(stored.header.size for stored in checked.needed.values())
    return QuantizedCopy(scheme.group, read, written, read_manifest_with_digest(target)[1])


def declare(scheme: Scheme) -> dict[str, Any]:
    """The ``quantization_config`` of a checkpoint made by ``scheme``, as compressed-tensors."""
    assert scheme.kind != "int4" or scheme.group is not None, "a file has one group size"
    weights = {
        "num_bits": 4 if scheme.kind == "int4" else 8,
        "type": "float" if scheme.kind == "fp8" else "int",
        "symmetric": True,
        "strategy": "channel" if scheme.group is None else "group",
        "group_size": scheme.group,
        "dynamic": False,
    }
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": _LAYOUTS[scheme.kind],
        "quantization_status": "compressed",
        "ignore": list(HIGH_PRECISION),
        "config_groups": {"group_0": group},
    }


def _check_target(source: Path, target: Path) -> None:
    if target.is_dir() and any(target.iterdir()):
        raise ConfigError(f"{target}: is not empty; give a new folder")
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: is a file; give a new folder")
    if target.resolve().is_relative_to(source.resolve()):
        raise ConfigError(f"{target}: lies in the source folder; give a folder elsewhere")


def _for_every_module(checked: CheckedCheckpoint, scheme: Scheme) -> Scheme:
    """The scheme with the one group size that a file has; refuse what headers show impossible."""
    names = quantised_names(checked.needed)
    if not names:
        raise ConfigError(f"{checked.folder}: has no projections to quantise")
    found = [checked.needed[name] for name in names]
    units = [scheme.unit(own.stored_name.removesuffix(".weight"), own.shape[-1]) for own in found]
    # each size that is allowed divides the larger ones
    return replace(scheme, group=min(units)) if scheme.kind == "int4" else scheme


def _write_shards(
    folder: Path, checked: CheckedCheckpoint, scheme: Scheme, progress: Progress | None
) -> int:
    """Safetensors files and their index; ConfigError if the source holds what is not a number.

    Returns the bytes of the new tensors.
    """
    tensors = checked.needed
    planned = plan_tensors(tensors, scheme)
    writer = ShardWriter(folder, planned, SHARD_BYTES)
    total, done = sum(stored.header.elements for stored in tensors.values()), 0
    for name, stored in sorted(tensors.items()):
        for piece in convert(stored, name, scheme):
            writer.write(*piece)
        done += stored.header.elements
        if progress is not None:
            progress(done, total)
    writer.finish()
    for shard in checked.files.shards:
        shard.require_unchanged()
    not_finite = sorted(checked.files.log.not_finite)
    refuse(checked.folder, describe(not_finite, "holds NaN or infinite values"))
    return sum(tensor.size for tensor in planned)


def _copy_others(source: Path, folder: Path) -> None:
    """Tokenizer, templates, generation settings, licence: files that hold no weights."""
    written = {"config.json", INDEX, MANIFEST}
    for path in sorted(source.iterdir()):
        is_left_out = path.name.startswith(".") or path.suffix in _LEFT_OUT or path.name in written
        if path.is_file() and not is_left_out:
            shutil.copyfile(path, folder / path.name)


def _write_manifest(source: Path, folder: Path, scheme: Scheme) -> None:
    group = "" if scheme.group is None else f", groups of {scheme.group}"
    made = f"quantised to {scheme.kind}{group}, rounded to nearest, from "
    if not (source / MANIFEST).exists():
        write_manifest(folder, initialised=made + "weights without a manifest")
        return
    manifest, digest = read_manifest_with_digest(source)
    made += f"the weights of manifest {digest}"
    write_manifest(folder, manifest.source, manifest.revision, made)
