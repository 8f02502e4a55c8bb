"""From a checkpoint folder to a model that several processes share.

Knows devices and threads; starting and watching is ``Ranks``', reading is the checkpoint's.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from blockdiff.checkpoint import load_model
from blockdiff.checkpoint.source import Progress
from blockdiff.config import load_config
from blockdiff.errors import ConfigError
from blockdiff.models.base import BlockDiffusionModel
from blockdiff.models.share import check_divisible
from blockdiff.parallel.group import DistributedGroup
from blockdiff.parallel.model import ParallelModel
from blockdiff.parallel.ranks import Ranks


@dataclass(frozen=True)
class ParallelSettings:
    """How many ranks share a model and how long they wait for each other."""

    tensor_parallel: int = 1
    timeout_seconds: float = 60.0
    threads: int | None = None
    """CPU threads of all ranks together; None: torch's own choice."""

    def __post_init__(self) -> None:
        if self.tensor_parallel < 1:
            raise ConfigError(f"tensor_parallel: {self.tensor_parallel} must be at least 1")
        if not self.timeout_seconds > 0:
            raise ConfigError(f"timeout: {self.timeout_seconds} s must be more than 0")

    @property
    def threads_per_rank(self) -> int:
        """At least one."""
        total = torch.get_num_threads() if self.threads is None else self.threads
        return max(total // self.tensor_parallel, 1)


def load_shared(
    folder: Path,
    device: str,
    dtype: str,
    settings: ParallelSettings,
    progress: Progress | None = None,
) -> BlockDiffusionModel:
    """The model in this process alone, or split over it and others that it starts.

    With more than one rank the calling thread's torch threads become this rank's share of them.
    """
    if settings.tensor_parallel == 1:
        # a family's class takes its own caches, which is narrower than the protocol says
        return cast(BlockDiffusionModel, load_model(folder, device, dtype, progress))
    return load_parallel(folder, device, dtype, settings, progress)


def load_parallel(
    folder: Path,
    device: str,
    dtype: str,
    settings: ParallelSettings,
    progress: Progress | None = None,
) -> ParallelModel:
    """As ``load_shared`` for more than one rank; ConfigError when the model does not divide."""
    size = settings.tensor_parallel
    check_divisible(load_config(folder), size)
    devices = rank_devices(device, size)
    group = DistributedGroup(0, size, torch.device(devices[0]))
    orders: dict[str, Any] = {
        "folder": str(folder.resolve()),
        "dtype": dtype,
        "threads": settings.threads_per_rank,
    }
    torch.set_num_threads(settings.threads_per_rank)
    ranks = Ranks(group, orders, devices, settings.timeout_seconds)
    try:
        began = time.monotonic()
        own = load_model(folder, devices[0], dtype, progress, group)
        ranks.meet(time.monotonic() - began)
    except BaseException:
        ranks.close()
        raise
    return ParallelModel(own, group, ranks)


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
