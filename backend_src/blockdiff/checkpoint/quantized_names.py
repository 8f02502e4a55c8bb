"""Which projections of a checkpoint are stored quantised, and whether their tensors fit.

Knows names, shapes and dtypes; reads no values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blockdiff.checkpoint.formats import Format, StoredPart, make_format
from blockdiff.checkpoint.reader import CheckpointFiles
from blockdiff.checkpoint.scheme import KINDS, W8A8
from blockdiff.checkpoint.stored import StoredTensor
from blockdiff.config import read_json
from blockdiff.config.quantization import Quantization, parse_quantization
from blockdiff.errors import ConfigError
from blockdiff.models.weights import Shapes

WEIGHT = ".weight"
# look-up tables are not projections, in any list of modules
_TABLES = ("embed_tokens", "word_embeddings")


@dataclass(frozen=True)
class QuantizedNames:
    """What a quantised checkpoint's tensors are to the model."""

    format: Format
    modules: Shapes  # module -> [rows, columns], quantised ones only
    tensors: tuple[str, ...]  # names that belong to them
    plain: Shapes  # what remains, tensor by tensor, in high precision
    problems: tuple[str, ...]


def resolve(
    own: Quantization, tensors: Mapping[str, StoredTensor], shapes: Shapes
) -> QuantizedNames:
    """Split the model's ``shapes`` by how they are stored, and check the quantised part."""
    storage = make_format(own)
    modules: Shapes = {}
    plain: Shapes = {}
    problems: list[str] = []
    used: list[str] = []
    for name, shape in shapes.items():
        module = name.removesuffix(WEIGHT)
        is_projection = name.endswith(WEIGHT) and len(shape) == 2 and not module.endswith(_TABLES)
        try:
            parts = storage.parts(*shape) if is_projection else {}
        except ConfigError as error:
            # only a module that is stored so has to fit
            parts = {}
            if own.method != "gptq" and own.covers(module):
                problems.append(f"{name} {error}")
        present = [part for part in parts if f"{module}.{part}" in tensors]
        marks = [part for part in present if part != "weight"]
        if marks and own.ignores(module):
            problems.append(f"{module}.{marks[0]} is unexpected: config.json excepts it")
        is_covered = own.covers(module) if own.method != "gptq" else name not in tensors
        if not parts or not (marks or is_covered):
            plain[name] = shape
            continue
        modules[module] = shape
        used += [f"{module}.{part}" for part in present]
        problems += _check(module, parts, tensors)
    return QuantizedNames(storage, modules, tuple(used), plain, tuple(problems))


def read_quantized_names(
    folder: Path, dtype: str, files: CheckpointFiles, shapes: Shapes
) -> QuantizedNames | None:
    """``resolve`` for the checkpoint in ``folder``; None where its config declares nothing."""
    own = parse_quantization(read_json(folder / "config.json"))
    if own is None:
        return None
    if dtype in KINDS:
        raise ConfigError(
            f"dtype is {dtype!r}, but {folder} is already quantised ({own.kind}); "
            "use float32 or bfloat16, in which activations are then computed"
        )
    if dtype == W8A8 and (own.kind != "int8" or own.group is not None):
        raise ConfigError(
            f"dtype is {dtype!r}, which needs int8 weights with one scale per output, but {folder} "
            f"holds {own.kind}{'' if own.group is None else f' in groups of {own.group}'}; "
            "use float32 or bfloat16"
        )
    return resolve(own, files.tensors, shapes)


def _check(
    module: str, parts: Mapping[str, StoredPart], tensors: Mapping[str, StoredTensor]
) -> Iterator[str]:
    for end, part in parts.items():
        stored = tensors.get(f"{module}.{end}")
        if stored is None:
            if part.is_required:
                yield f"{module}.{end} is missing"
        elif stored.shape not in part.shapes:
            allowed = " or ".join(str(list(shape)) for shape in part.shapes)
            yield f"{stored.stored_name} has shape {list(stored.shape)}, must be {allowed}"
        elif stored.dtype not in part.dtypes:
            allowed = " or ".join(part.dtypes)
            yield f"{stored.stored_name} has dtype {stored.dtype}, must be {allowed}"
