"""``python -m blockdiff.parallel.follower``: a rank above 0, which does what rank 0 says.

Started by ``launch`` only. It leaves when rank 0 closes the connection or dies, at any moment.
Knows commands and its part of the model; knows nothing of requests.
"""

import json
import logging
import os
import select
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.errors import BlockdiffError, ConfigError
from blockdiff.models.base import ConditionedModel, ModelCaches
from blockdiff.models.layers.trace import Trace
from blockdiff.models.trunk import LanguageModel
from blockdiff.parallel.group import DistributedGroup, PeerLostError
from blockdiff.parallel.launch import LOST_PEER_CODE, follow_rank_0
from blockdiff.parallel.messages import (
    Command,
    Numbers,
    decode,
    unpack_batch,
    unpack_pool,
    unpack_work,
)
from blockdiff_kernels.implementation import parse_choices, set_choices

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Orders:
    """What rank 0 tells a follower on its command line."""

    rank: int
    size: int
    connection: int  # an inherited file descriptor
    folder: str
    device: str
    dtype: str
    threads: int
    deterministic: bool
    kernels: str  # which implementations run
    meeting_file: str
    timeout_seconds: float


class Performer:
    """Runs commands on this rank's part of the model."""

    def __init__(self, model: LanguageModel, group: DistributedGroup) -> None:
        self._model = model
        self._group = group
        self._caches: dict[int, Any] = {}

    def perform(self, command: Command, arguments: Numbers) -> None:
        """Do one command; results stay on this rank or go to the group."""
        first, *rest = arguments[:3].tolist()
        if command is Command.NEW_CACHES:
            alive = set(arguments[6:].tolist())
            self._caches = {n: own for n, own in self._caches.items() if n in alive}
            slots, context = rest
            pool = unpack_pool(arguments[3:6])
            self._caches[first] = self._model.new_caches(slots, context, pool)
        elif command is Command.PREPARE:
            self._caches[first].prepare(unpack_work(arguments[1:]))
        elif command is Command.ROUND:
            self._round(self._caches[first], bool(rest[0]), arguments[2:])
        elif command is Command.HEAD:
            self._model.head(self._received(first, self._model.hidden_size))
        elif command is Command.STATES:
            self._model.slot_states(self._caches[first], *rest)
        else:
            self._condition(command, arguments)

    def _round(self, caches: ModelCaches, wants_trace: bool, packed: Numbers) -> None:
        self._model.hidden(unpack_batch(packed), caches, Trace() if wants_trace else None)

    def _condition(self, command: Command, arguments: Numbers) -> None:
        """Commands to a model whose previews read signals of the step before."""
        own, first = self._model, int(arguments[0])
        assert isinstance(own, ConditionedModel), "only such a model has signals"
        if command is Command.EXPECT:
            own.expect(self._received(first, own.info.vocab_size, torch.float32))
        elif command is Command.STORE_SIGNALS:
            count = int(arguments[1])
            signals = self._received(count, self._model.hidden_size)
            slots, places = arguments[2 : 2 + count], arguments[2 + count :]
            own.store_signals(
                self._caches[first], signals, self._tensor(slots), self._tensor(places)
            )
        else:
            own.forget_signals(self._caches[first], self._tensor(arguments[1:]))

    def _received(self, rows: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
        """Rows [rows, width] that rank 0 broadcasts, in the model's dtype if none is given."""
        own = self._model
        kind = own.dtype if dtype is None else dtype
        return self._group.broadcast(torch.empty((rows, width), dtype=kind, device=own.device))

    def _tensor(self, numbers: Numbers) -> Tensor:
        return torch.from_numpy(numbers.copy()).to(self._model.device)


def run(orders: Orders, connection: Connection) -> None:
    """Load, say so, meet the other ranks, then obey until the connection ends (EOFError)."""
    torch.set_num_threads(orders.threads)
    set_choices(parse_choices(orders.kernels))
    device = torch.device(orders.device)
    if device.type == "cuda":
        # kernels without a tensor to look at start on the current device
        torch.cuda.set_device(device)
    group = DistributedGroup(orders.rank, orders.size, device)
    model = load_model(
        orders.folder, device, orders.dtype, group=group, deterministic=orders.deterministic
    )
    report(connection, "ready", bytes_read=model.bytes_read)
    group.connect(Path(orders.meeting_file), orders.timeout_seconds)
    performer = Performer(model, group)
    with torch.inference_mode():
        while True:
            performer.perform(*decode(connection.recv_bytes()))


def report(connection: Connection, kind: str, **facts: Any) -> None:
    """Tell rank 0; it may be gone already."""
    try:
        connection.send_bytes(json.dumps({"kind": kind, **facts}).encode())
    except OSError:
        logger.warning("rank 0 is gone: %s %s", kind, facts)


def leave_with_rank_0(connection: Connection) -> None:
    """End this process the moment rank 0 is gone, whatever the main thread waits for."""
    watched = select.poll()
    # an end that hangs up is always reported; commands are the main thread's
    watched.register(connection.fileno(), 0)
    watched.poll()
    os._exit(0)


def main(arguments: list[str]) -> int:
    """Exit code: 0 rank 0 is gone, ``LOST_PEER_CODE`` another rank is, 1 this one failed."""
    orders = Orders(**json.loads(arguments[0]))
    follow_rank_0()
    connection = Connection(orders.connection)
    threading.Thread(target=leave_with_rank_0, args=(connection,), daemon=True).start()
    try:
        run(orders, connection)
    except PeerLostError:
        return LOST_PEER_CODE
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except BlockdiffError as error:
        report(connection, "config" if isinstance(error, ConfigError) else "error", text=str(error))
    except Exception as error:
        text = " ".join(str(error).split()) or "no message"
        report(connection, "error", text=f"{type(error).__name__}: {text}")
    return 1


if __name__ == "__main__":
    # no destructor may wait for a rank that is gone
    os._exit(main(sys.argv[1:]))
