"""From a checkpoint folder to a model: check every tensor, then read each one once.

Knows files and names; the maths is the model's.
"""

import logging
from pathlib import Path

import torch

from blockdiff.checkpoint.reader import CheckpointFiles, open_checkpoint, refuse
from blockdiff.checkpoint.source import DenseSource, Progress
from blockdiff.config import load_config
from blockdiff.errors import ConfigError
from blockdiff.models.group import ALONE, Group
from blockdiff.models.registry import FAMILIES
from blockdiff.models.share import Share
from blockdiff.models.source import WeightSource
from blockdiff.models.split_source import SplitSource
from blockdiff.models.trunk import LanguageModel
from blockdiff.models.weights import Shapes

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STORED_DTYPES = ("F32", "BF16", "F16")


def load_model(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    progress: Progress | None = None,
    group: Group = ALONE,
) -> LanguageModel:
    """Load the checkpoint in ``path`` onto ``device``, computing in ``dtype``.

    ``progress`` is called with (tensors read, tensors in all). Everything wrong with the files is
    reported in one ConfigError. Only the share of ``group.rank`` is read; nothing is exchanged.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; it must be one of {sorted(DTYPES)}")
    folder = Path(path)
    target = _device(device)
    config = load_config(folder)
    share = Share(config, group)
    local = share.local()
    family = FAMILIES[config.model_type]
    files = open_checkpoint(folder)
    has_fused_experts = any(n.endswith(".mlp.experts.gate_up_proj") for n in files.tensors)
    shapes = family.shapes(config, has_fused_experts)
    unused = [name for name in files.tensors if name.endswith(family.unused(config))]
    spare = {*unused, "lm_head.weight"} if config.tie_word_embeddings else set(unused)
    refuse(folder, [*files.problems, *_compare(files, shapes, spare)])
    for note in (*files.notes, *_note_unused(files, unused)):
        log.info("checkpoint %s: %s", folder, note)
    needed = {name: files.tensors[name] for name in shapes}
    stored = DenseSource(needed, target, DTYPES[dtype], family.float32, progress)
    source: WeightSource = stored if group.size == 1 else SplitSource(stored, share)
    model = family.build(local, source, share)
    model.bytes_read = stored.bytes_read
    return model


def _device(device: str | torch.device) -> torch.device:
    try:
        target = torch.device(device)
    except (RuntimeError, ValueError):
        raise ConfigError(f"device is {device!r}; it must be cpu or cuda") from None
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {device!r}, but no CUDA device is available; use cpu")
    return target


def _note_unused(files: CheckpointFiles, names: list[str]) -> list[str]:
    if not names:
        return []
    first = files.tensors[names[0]].stored_name
    return [f"{len(names)} tensors not used by this config ({first}, ...)"]


def _compare(files: CheckpointFiles, shapes: Shapes, spare: set[str]) -> list[str]:
    """What is missing, unexpected, misshapen or of a dtype that cannot be computed with."""
    problems = []
    if not files.problems:
        problems += [f"{name} is missing" for name in shapes if name not in files.tensors]
    for name, stored in files.tensors.items():
        if name not in shapes:
            if name not in spare:
                problems.append(f"{stored.stored_name} is unexpected")
        elif stored.shape != shapes[name]:
            problems.append(
                f"{stored.stored_name} has shape {list(stored.shape)}, must be {list(shapes[name])}"
            )
        elif stored.dtype not in STORED_DTYPES:
            problems.append(
                f"{stored.stored_name} has dtype {stored.dtype}, must be one of {STORED_DTYPES}"
            )
    return problems
