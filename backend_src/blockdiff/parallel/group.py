"""A model's ``Group`` over torch.distributed: NCCL between GPUs, gloo between CPU processes.

Makes a process group of its own, so that the caller's default one is not touched. Knows nothing
of models or of who starts the processes.
"""

import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from blockdiff.errors import EngineDeadError

# all ranks are on this machine, so nothing may listen on another interface
LOOPBACK = "lo"


class PeerLostError(EngineDeadError):
    """Another rank has died or does not answer; which one is not known here."""


class DistributedGroup:
    """One rank's end; ``connect`` must be called on all ranks before anything is exchanged."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self._ranks: Any = None

    def connect(self, meeting_file: Path, timeout_seconds: float) -> None:
        """Meet the other ranks by a file on this machine that none of them has used before.

        PeerLostError when one of them does not come, or does not answer later, within the time.
        """
        timeout = timedelta(seconds=timeout_seconds)
        store = distributed.FileStore(str(meeting_file), self.size)
        store.set_timeout(timeout)
        make = _nccl if self.device.type == "cuda" else _gloo
        try:
            self._ranks = make(store, self.rank, self.size, timeout)
        except RuntimeError as error:
            raise PeerLostError(_lost(error)) from error
        # NCCL connects at the first exchange, which must not be a round of the engine
        self.all_reduce(torch.zeros(1, device=self.device))

    def all_reduce(self, x: Tensor) -> Tensor:
        """See ``models.group``."""
        x = x.contiguous()
        self._exchange("allreduce", [x])
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """See ``models.group``."""
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._exchange("allgather", [parts], [x])
        return torch.cat(parts, dim=dim)

    def broadcast(self, x: Tensor) -> Tensor:
        """See ``models.group``."""
        x = x.contiguous()
        self._exchange("broadcast", [x])
        return x

    def _exchange(self, kind: str, *tensors: Any) -> None:
        try:
            getattr(self._ranks, kind)(*tensors).wait()
        except RuntimeError as error:
            raise PeerLostError(_lost(error)) from error

    def abort(self) -> None:
        """End an exchange that waits for a dead rank; may be called from another thread."""
        # a gloo exchange fails by itself as soon as the peer's sockets close
        if self._ranks is not None and self.device.type == "cuda":
            with contextlib.suppress(RuntimeError):
                self._ranks.abort()


def _lost(error: Exception) -> str:
    return f"another rank is gone: {' '.join(str(error).split())}"


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    # torch ships no type for what its own init_process_group uses
    gloo: Any = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(interface=LOOPBACK)]
    options._timeout = timeout
    return gloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return distributed.ProcessGroupNCCL(store, rank, size, options)
