"""All ranks of one model as seen by rank 0: started together, commanded together, ended together.

Knows processes and messages; knows nothing of models.
"""

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blockdiff.errors import BlockdiffError, EngineDeadError
from blockdiff.parallel.group import DistributedGroup, PeerLostError
from blockdiff.parallel.launch import Follower, start_follower
from blockdiff.parallel.watch import Watch

# the watch names a fault first; the group's own limit only backs it up
SPARE_SECONDS = 30.0
EXPLAIN_SECONDS = 5.0
# a process starts and imports within this time even on a busy machine
START_SECONDS = 120.0


class Ranks:
    """The followers of one group; they end with this object or with this process."""

    def __init__(
        self,
        group: DistributedGroup,
        orders: Mapping[str, Any],
        devices: Sequence[str],
        limit_seconds: float,
    ) -> None:
        """Start ranks 1 to size - 1, each on its device.

        ``limit_seconds`` is the longest that a command may take.
        """
        self._group = group
        self._limit = limit_seconds
        folder = Path(tempfile.mkdtemp(prefix="blockdiff-ranks-"))
        self._meeting_file = folder / "meeting"
        orders = {
            **orders,
            "size": group.size,
            "meeting_file": str(self._meeting_file),
            "timeout_seconds": limit_seconds + SPARE_SECONDS,
        }
        own = [{**orders, "device": device} for device in devices]
        self._watch = Watch(
            lambda: [start_follower(rank, own[rank]) for rank in range(1, group.size)], group.abort
        )
        self._end = weakref.finalize(self, _end, self._watch, folder)

    def meet(self, load_seconds: float) -> None:
        """Wait until all have loaded their parts, as this rank did in ``load_seconds``; connect."""
        with self.waiting(max(self._limit, START_SECONDS) + load_seconds):
            self._watch.wait_until_ready()
        with self.waiting():
            self._group.connect(self._meeting_file, self._limit + SPARE_SECONDS)

    @property
    def followers(self) -> Sequence[Follower]:
        """The processes of the other ranks."""
        return self._watch.followers

    def send(self, message: bytes) -> None:
        """Give every follower ``message``."""
        for follower in self.followers:
            follower.connection.send_bytes(message)

    @contextmanager
    def waiting(self, limit_seconds: float | None = None) -> Iterator[None]:
        """The other ranks are needed inside, no longer than the limit; errors name the rank."""
        self._watch.check()
        self._watch.begin(self._limit if limit_seconds is None else limit_seconds)
        try:
            yield
            self._watch.check()
        except (PeerLostError, OSError) as error:
            try:
                self._watch.explain(EXPLAIN_SECONDS)
            finally:
                self.close()
            raise self._watch.note(EngineDeadError(f"tensor parallel: {error}")) from error
        except BaseException as error:
            # the other ranks have gone on without this one
            self.close()
            if isinstance(error, BlockdiffError) or not isinstance(error, Exception):
                raise
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            fault = EngineDeadError(f"tensor parallel rank 0 failed: {text}")
            raise self._watch.note(fault) from error
        finally:
            self._watch.end()

    def check(self) -> None:
        """Raise EngineDeadError, naming the rank, when one has died."""
        self._watch.check()

    def close(self) -> None:
        """End all followers."""
        self._end()


def _end(watch: Watch, folder: Path) -> None:
    watch.stop()
    shutil.rmtree(folder, ignore_errors=True)
