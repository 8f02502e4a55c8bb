"""Reads the heartbeat file of an engine loop. Knows neither the engine nor what to do about it."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

VARIABLE = "BLOCKDIFF_HEARTBEAT_FILE"


@dataclass(frozen=True)
class Heartbeat:
    """``monotonic``: time.monotonic() of the engine's last round, 0 when it makes no more.

    ``pid``: its process. ``running`` and ``waiting``: requests with and without a slot, where the
    engine tells.
    """

    pid: int
    monotonic: float
    running: int | None = None
    waiting: int = 0

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
        beat = Heartbeat(int(found["pid"]), float(found["monotonic"]))
        if "running" not in found:
            return beat
        return replace(beat, running=int(found["running"]), waiting=int(found.get("waiting", 0)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
