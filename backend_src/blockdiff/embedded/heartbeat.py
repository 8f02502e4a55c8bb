"""Reads the heartbeat file of an engine loop. Knows neither the engine nor what to do about it."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

VARIABLE = "BLOCKDIFF_HEARTBEAT_FILE"


@dataclass(frozen=True)
class Heartbeat:
    """``monotonic``: time.monotonic() of the engine's last round, 0 when it makes no more.

    ``pid``: its process.
    ``running``: requests that hold a slot, where the engine tells it.
    """

    pid: int
    monotonic: float
    running: int | None = None

    @property
    def has_stopped(self) -> bool:
        """True when the engine itself says that it makes no more rounds."""
        return self.monotonic <= 0

    def age(self) -> float:
        """Seconds since the last round."""
        return time.monotonic() - self.monotonic


def read_heartbeat(path: Path) -> Heartbeat | None:
    """The last beat; None while the file is missing or half written."""
    try:
        found = json.loads(path.read_text())
        running = found.get("running")
        beat = Heartbeat(int(found["pid"]), float(found["monotonic"]))
        return beat if running is None else replace(beat, running=int(running))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
