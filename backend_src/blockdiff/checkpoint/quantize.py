"""A checkpoint folder in high precision -> one with quantised projections, in a public format.

Reads tensor by tensor and writes shards of limited size, so memory does not grow with the model.
The same source gives the same bytes. Knows nothing of families.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from blockdiff.checkpoint.load import check_files
from blockdiff.checkpoint.scheme import HIGH_PRECISION, Scheme, is_quantisable
from blockdiff.checkpoint.stored import StoredTensor
from blockdiff.config import read_json
from blockdiff.config.quantization import KEY
from blockdiff.errors import ConfigError
from blockdiff.weights.headers import INDEX
from blockdiff.weights.manifest import MANIFEST, read_manifest_with_digest, write_manifest

SHARD_BYTES = 4 << 30
# files of other weight formats, and those that are written anew
_LEFT_OUT = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
_LAYOUTS = {"int4": "pack-quantized", "int8": "int-quantized", "fp8": "float-quantized"}
Named = tuple[str, Tensor]
Progress = Callable[[int, int], None]


def quantize_checkpoint(
    source: Path, target: Path, scheme: Scheme, progress: Progress | None = None
) -> None:
    """Write ``target``, whole or not at all; ConfigError for what cannot be read or quantised.

    ``progress`` is called with (elements done, elements in all).
    """
    checked = check_files(source)
    if checked.quantized is not None:
        raise ConfigError(f"{source}: is already quantised; give the checkpoint it was made from")
    _check_target(source, target)
    _check_modules(source, checked.needed, scheme)
    config = {**read_json(source / "config.json"), KEY: declare(scheme)}
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        _write_shards(partial, _convert(checked.needed, scheme, progress))
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        _copy_others(source, partial)
        _write_manifest(source, partial, scheme)
        partial.rename(target)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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


def _check_modules(source: Path, tensors: Mapping[str, StoredTensor], scheme: Scheme) -> None:
    """Refuse what headers show to be impossible."""
    names = [n for n, t in tensors.items() if is_quantisable(n.removesuffix(".weight"), t.shape)]
    if not names:
        raise ConfigError(f"{source}: has no projections to quantise")
    for stored in (tensors[name] for name in names):
        if scheme.kind == "int4":
            scheme.group_for(stored.stored_name.removesuffix(".weight"), stored.shape[-1])


def _convert(
    tensors: Mapping[str, StoredTensor], scheme: Scheme, progress: Progress | None
) -> Iterator[Named]:
    """What the new files hold, tensor by tensor."""
    total, done = sum(_elements(stored) for stored in tensors.values()), 0
    for name, stored in sorted(tensors.items()):
        if not is_quantisable(name.removesuffix(".weight"), stored.shape):
            yield stored.stored_name, stored.read()
        elif len(stored.shape) == 3:
            yield from _unstack(stored, scheme)
        else:
            yield from _quantise(stored.stored_name.removesuffix(".weight"), stored.read(), scheme)
        done += _elements(stored)
        if progress is not None:
            progress(done, total)


def _unstack(stored: StoredTensor, scheme: Scheme) -> Iterator[Named]:
    """Experts one by one, since the format has no stacks of them."""
    before, _, kind = stored.stored_name.removesuffix(".weight").rpartition(".")
    parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
    for number in range(stored.shape[0]):
        weight = stored.read((slice(number, number + 1),))[0]
        for part, own in zip(parts, weight.chunk(len(parts)), strict=True):
            yield from _quantise(f"{before}.{number}.{part}", own, scheme)


def _quantise(module: str, weight: Tensor, scheme: Scheme) -> Iterator[Named]:
    values, scale = scheme.quantise(module, weight)
    yield f"{module}.weight_scale", scale.bfloat16()
    if scheme.kind != "int4":
        yield f"{module}.weight", values
        return
    yield f"{module}.weight_packed", values.view(torch.int32)
    yield f"{module}.weight_shape", torch.tensor(weight.shape, dtype=torch.int64)


def _write_shards(folder: Path, named: Iterator[Named]) -> None:
    """Safetensors files of up to SHARD_BYTES, and their index."""
    shards: list[list[str]] = []
    held: dict[str, Tensor] = {}
    total = size = 0

    def flush() -> None:
        nonlocal held, size
        file = folder / f"shard-{len(shards)}"
        save_file({n: t.contiguous() for n, t in held.items()}, str(file), {"format": "pt"})
        shards.append(sorted(held))
        held, size = {}, 0

    for name, tensor in named:
        if held and size + tensor.nbytes > SHARD_BYTES:
            flush()
        held[name] = tensor
        size, total = size + tensor.nbytes, total + tensor.nbytes
    flush()
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"shard-{number}").rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


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


def _elements(stored: StoredTensor) -> int:
    count = 1
    for length in stored.shape:
        count *= length
    return count
