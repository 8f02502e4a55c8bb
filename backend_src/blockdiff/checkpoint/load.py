"""From a checkpoint folder to a model: check every tensor, then read each one once.

No module is built empty and filled later: names, shapes and dtypes are checked from the files'
headers alone, and layers are made of the tensors that were read. Knows files and names; the maths
is the model's.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from blockdiff.checkpoint.packing import pack_projections
from blockdiff.checkpoint.quantized_names import QuantizedNames, read_quantized_names
from blockdiff.checkpoint.quantized_source import make_source
from blockdiff.checkpoint.reader import CheckpointFiles, open_checkpoint, refuse
from blockdiff.checkpoint.report import LoadMeter, LoadReport
from blockdiff.checkpoint.scheme import KINDS, STORED_DTYPES, W8A8
from blockdiff.checkpoint.sizes import model_tensors, tensor_bytes
from blockdiff.checkpoint.source import DenseSource
from blockdiff.checkpoint.stored import StoredTensor
from blockdiff.config import AnyConfig, load_config, read_json, unused_keys
from blockdiff.errors import ConfigError
from blockdiff.kernel_choice import use_kernels
from blockdiff.models.expert_layout import find_layout
from blockdiff.models.group import ALONE, Group, InOrder
from blockdiff.models.numerics import PACKED
from blockdiff.models.registry import FAMILIES, Family
from blockdiff.models.share import Share
from blockdiff.models.source import WeightSource
from blockdiff.models.split_source import SplitSource
from blockdiff.models.steady_source import SteadySource
from blockdiff.models.trunk import LanguageModel
from blockdiff.models.weights import Shapes
from blockdiff.weights.ranges import describe
from blockdiff_kernels.implementation import CPU, REFERENCE, TRITON, choose
from blockdiff_kernels.int8_rows import is_fast

log = logging.getLogger(__name__)

# what is computed with; projections of the last four are quantised while they are read
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    **dict.fromkeys((*KINDS, W8A8), torch.bfloat16),
}
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class CheckedCheckpoint:
    """A folder whose files fit its config; nothing but headers has been read."""

    folder: Path
    config: AnyConfig
    family: Family
    files: CheckpointFiles
    needed: dict[str, StoredTensor]  # the model's tensors, by canonical name
    notes: tuple[str, ...]  # what was passed over
    quantized: QuantizedNames | None  # which of the tensors make quantised projections


@dataclass(frozen=True)
class LoadedModel:
    """A model, what loading it took, and what was passed over."""

    model: LanguageModel
    report: LoadReport
    notes: tuple[str, ...]


Tell = Callable[[LoadedModel], None]


def load_model(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    progress: Progress | None = None,
    group: Group = ALONE,
    deterministic: bool = False,
) -> LanguageModel:
    """As ``load_with_report``; report and notes go to the log."""
    loaded = load_with_report(path, device, dtype, progress, group, deterministic)
    log_report(path, loaded)
    return loaded.model


def log_report(path: str | Path, loaded: LoadedModel) -> None:
    """Say in the log what loading ``path`` took and what was passed over."""
    for line in (*loaded.notes, str(loaded.report)):
        log.info("checkpoint %s: %s", path, line)


def load_with_report(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    progress: Progress | None = None,
    group: Group = ALONE,
    deterministic: bool = False,
) -> LoadedModel:
    """Load the checkpoint in ``path`` onto ``device``, computing in ``dtype``.

    int8, int4 and fp8 quantise projections while loading and compute in bfloat16; w8a8 takes int8
    weights, stored or quantised while loading, and makes the rows they multiply int8 too.
    ``progress`` is called with (bytes read, bytes in all). Everything wrong with the files is
    reported in one ConfigError, and so are all tensors that hold NaN or infinite values.
    Only the share of ``group.rank`` is read; nothing is exchanged. With ``deterministic`` the bits
    of a request's results do not depend on the batch.
    """
    target = require_device(device)
    own_notes = check_dtype(dtype, target)
    checked = check_files(path, dtype)
    share = Share(checked.config, InOrder(group) if deterministic and group.size > 1 else group)
    files, meter = checked.files, LoadMeter()
    total = sum(stored.header.size for stored in checked.needed.values())
    if progress is not None:
        files.log.on_bytes = lambda done: progress(done, total)
    options = (checked.needed, target, DTYPES[dtype], checked.family.float32)
    source = _with_numerics(make_source(checked.quantized, dtype, options), deterministic)
    if group.size > 1:
        source = SplitSource(source, share)
    model = checked.family.build(share.local(), source, share)
    pack_projections(model)
    model.bytes_read = files.log.bytes_kept
    for shard in files.shards:
        shard.require_unchanged()
    refuse(checked.folder, describe(sorted(files.log.not_finite), "holds NaN or infinite values"))
    sizes = [tensor_bytes(tensor) for tensor in model_tensors(model)]
    bound = max(sizes) + (sum(sizes) if target.type == "cpu" else 0)
    report = meter.report(len(checked.needed), files.log.bytes_read, bound)
    return LoadedModel(model, report, (*own_notes, *checked.notes))


def _with_numerics(source: DenseSource, deterministic: bool) -> WeightSource:
    if deterministic:
        return SteadySource(source)
    if source.device.type == "cpu":
        source.numerics = PACKED
    return source


def check_files(path: str | Path, dtype: str = "float32") -> CheckedCheckpoint:
    """Check config and headers: every tensor there, whole, of the right shape and a known dtype."""
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; it must be one of {list(DTYPES)}")
    folder = Path(path)
    config = load_config(folder)
    family = FAMILIES[config.model_type]
    files = open_checkpoint(folder)
    shapes = family.shapes(config, find_layout(files.tensors))
    names = read_quantized_names(folder, dtype, files, shapes)
    problems, needed = list(files.problems), list(shapes)
    spare = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if names is not None:
        shapes, spare = names.plain, spare.union(names.tensors)
        problems, needed = [*problems, *names.problems], [*shapes, *names.tensors]
    wanted = set(needed)
    beside = [name for name in files.tensors if name not in wanted]
    unused = [name for name in beside if family.unused(config, name, wanted)]
    refuse(folder, [*problems, *_compare(files, shapes, spare.union(unused))])
    notes = (*files.notes, *_unused_notes(files, unused), *_config_notes(folder))
    tensors = {name: files.tensors[name] for name in needed}
    return CheckedCheckpoint(folder, config, family, files, tensors, notes, names)


def require_device(device: str | torch.device) -> torch.device:
    """The device named, if this machine can compute on it with the kernels in force."""
    try:
        target = torch.device(device)
    except (RuntimeError, ValueError):
        target = torch.device("meta")
    if target.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {str(device)!r}; it must be cpu or cuda")
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {str(device)!r}, but no CUDA device is available; use cpu")
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {str(device)!r}; it must be cpu or cuda:0 to "
            f"cuda:{torch.cuda.device_count() - 1}"
        )
    use_kernels(None, target.type)
    return target


def check_dtype(dtype: str, device: torch.device) -> tuple[str, ...]:
    """What there is to tell of ``dtype`` on ``device``; ConfigError where they do not go together.

    Names that are no dtype are refused elsewhere.
    """
    if dtype != W8A8:
        return ()
    chosen = choose("quantized_linear", device, (REFERENCE, CPU, TRITON))
    if device.type != "cpu" or chosen is TRITON:
        raise ConfigError(
            f"dtype is {W8A8!r}, for which there are no kernels on a GPU or in Triton (device "
            f"{device}, quantized_linear={chosen}); use int8"
        )
    if chosen is REFERENCE or is_fast():
        return ()
    return (f"dtype {W8A8}: this processor has no AVX-512 VNNI; int8 is faster",)


def _unused_notes(files: CheckpointFiles, unused: list[str]) -> list[str]:
    names = [files.tensors[name].stored_name for name in unused]
    return describe(names, "is not used by this config")


def _config_notes(folder: Path) -> list[str]:
    notes = []
    if unknown := unused_keys(folder):
        notes.append(f"config.json: keys not used: {', '.join(unknown)}")
    if "auto_map" in read_json(folder / "config.json"):
        notes.append("config.json: auto_map names remote code, which is never run")
    return notes


def _compare(files: CheckpointFiles, shapes: Shapes, spare: set[str]) -> list[str]:
    """What is missing, unexpected, misshapen or of a dtype that cannot be computed with."""
    problems = []
    if not files.problems:
        absent = [name for name in shapes if name not in files.tensors]
        problems += describe(absent, "is missing")
    bad: dict[str, list[str]] = {}
    for name, stored in files.tensors.items():
        what = _fault(stored, shapes.get(name)) if name not in spare else None
        if what is not None:
            bad.setdefault(what, []).append(stored.stored_name)
    return problems + [line for what, names in bad.items() for line in describe(names, what)]


def _fault(stored: StoredTensor, shape: tuple[int, ...] | None) -> str | None:
    if shape is None:
        return "is unexpected"
    if stored.shape != shape:
        return f"has shape {list(stored.shape)}, must be {list(shape)}"
    if stored.dtype not in STORED_DTYPES:
        return f"has dtype {stored.dtype}, must be one of {STORED_DTYPES}"
    return None
