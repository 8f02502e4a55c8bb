"""From a checkpoint folder to a model that several processes share.

Knows devices and threads; starting and watching is ``Ranks``', reading is the checkpoint's.
"""

import time
from pathlib import Path
from typing import Any

import torch

from blockdiff.checkpoint.load import LoadedModel, Progress, Tell, load_with_report, log_report
from blockdiff.config import load_config
from blockdiff.errors import ConfigError
from blockdiff.models.base import ConditionedModel
from blockdiff.models.share import check_divisible
from blockdiff.models.trunk import LanguageModel
from blockdiff.parallel.conditioned import ParallelConditionedModel
from blockdiff.parallel.group import DistributedGroup
from blockdiff.parallel.model import ParallelModel
from blockdiff.parallel.ranks import Ranks
from blockdiff.parallel.settings import ParallelSettings
from blockdiff_kernels.implementation import current_choices, spell_choices


def load_shared(
    folder: Path,
    device: str,
    dtype: str,
    settings: ParallelSettings,
    progress: Progress | None = None,
    tell: Tell | None = None,
) -> LanguageModel | ParallelModel:
    """The model in this process alone, or split over it and others that it starts.

    With more than one rank the calling thread's torch threads become this rank's share of them.
    """
    if settings.tensor_parallel == 1:
        loaded = load_with_report(
            folder, device, dtype, progress, deterministic=settings.deterministic
        )
        _tell(folder, loaded, tell)
        return loaded.model
    return load_parallel(folder, device, dtype, settings, progress, tell)


def load_parallel(
    folder: Path,
    device: str,
    dtype: str,
    settings: ParallelSettings,
    progress: Progress | None = None,
    tell: Tell | None = None,
) -> ParallelModel:
    """As ``load_shared`` for more than one rank; ConfigError when the model does not divide."""
    size = settings.tensor_parallel
    check_divisible(load_config(folder), size)
    devices = rank_devices(device, size)
    group = DistributedGroup(0, size, torch.device(devices[0]))
    threads = settings.share_threads(torch.get_num_threads())
    orders: dict[str, Any] = {
        "folder": str(folder.resolve()),
        "dtype": dtype,
        "threads": threads,
        "deterministic": settings.deterministic,
        "kernels": spell_choices(current_choices()),
    }
    torch.set_num_threads(threads)
    ranks = Ranks(group, orders, devices, settings.timeout_seconds)
    try:
        began = time.monotonic()
        loaded = load_with_report(
            folder, devices[0], dtype, progress, group, settings.deterministic
        )
        ranks.meet(time.monotonic() - began)
        _tell(folder, loaded, tell)
    except BaseException:
        ranks.close()
        raise
    own = loaded.model
    kind = ParallelConditionedModel if isinstance(own, ConditionedModel) else ParallelModel
    return kind(own, group, ranks)


def _tell(folder: Path, loaded: LoadedModel, tell: Tell | None) -> None:
    if tell is None:
        log_report(folder, loaded)
    else:
        tell(loaded)


def rank_devices(device: str, size: int) -> list[str]:
    """One device per rank: the CPU for all, or the first ``size`` GPUs."""
    if device == "cpu":
        return [device] * size
    if device != "cuda":
        raise ConfigError(f"device is {device!r}; with tensor_parallel it must be cpu or cuda")
    found = torch.cuda.device_count()
    if found < size:
        raise ConfigError(f"tensor_parallel: {size} needs {size} CUDA devices, {found} are here")
    return [f"cuda:{rank}" for rank in range(size)]
