"""Empties a running server before it is stopped.

At SIGTERM Triton's schedulers refuse the inner steps of ensembles too: a stream that still runs
then gets no further block and hangs until the exit timeout. So whoever stops a server drains it
first. Knows the relay socket and the heartbeat file; knows nothing of processes and signals.
"""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from blockdiff.serving.relay import CancelRelay

POLL_SECONDS = 0.1
# Longer than the heartbeat's own interval, so that an empty engine has said so at least twice.
IDLE_SECONDS = 2.5


def drain(relay_socket: Path, heartbeat_file: Path, seconds: float) -> bool:
    """Makes the engine refuse newcomers and waits until nobody runs or waits.

    True when the server is empty, False when ``seconds`` have passed or the engine is silent.
    """
    relay = CancelRelay(relay_socket)
    give_up_at = time.monotonic() + seconds
    idle_since: float | None = None
    try:
        while time.monotonic() < give_up_at:
            relay.drain()
            beat = _read(heartbeat_file)
            is_idle = beat.get("is_draining") is True and not (beat["running"] or beat["waiting"])
            idle_since = (idle_since or time.monotonic()) if is_idle else None
            if idle_since is not None and time.monotonic() - idle_since >= IDLE_SECONDS:
                return True
            time.sleep(POLL_SECONDS)
    finally:
        relay.close()
    return False


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {"running": 1, "waiting": 0, **found}
    return {}
