"""One thread that runs an action for every wait that lasts too long.

A blocking read of a gRPC stream has no time limit of its own, and a thread per read would be
wasteful, so all streams of a client share this. Knows nothing of gRPC.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Watchdog:
    """``arm`` before a wait and ``disarm`` after it; the thread starts with the first ``arm``."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waits: dict[int, tuple[float, Callable[[], None]]] = {}
        self._next_key = 0
        self._wakes_at: float | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def arm(self, seconds: float, action: Callable[[], None]) -> int:
        """Run ``action`` (short, non-blocking) after ``seconds`` unless disarmed by the key."""
        due = time.monotonic() + seconds
        with self._condition:
            key = self._next_key
            self._next_key += 1
            self._waits[key] = (due, action)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(
                    target=self._run, name="blockdiff-client-watchdog", daemon=True
                )
                self._thread.start()
            elif self._wakes_at is None or due < self._wakes_at:
                self._condition.notify()
        return key

    def disarm(self, key: int) -> bool:
        """False when the action has run (or is about to)."""
        with self._condition:
            return self._waits.pop(key, None) is not None

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._waits.clear()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                if self._is_closed:
                    return
                due = self._take_due()
                if not due:
                    self._wait()
            for action in due:
                action()

    def _take_due(self) -> list[Callable[[], None]]:
        now = time.monotonic()
        keys = [key for key, (due, _) in self._waits.items() if due <= now]
        return [self._waits.pop(key)[1] for key in keys]

    def _wait(self) -> None:
        self._wakes_at = min((due for due, _ in self._waits.values()), default=None)
        seconds = None if self._wakes_at is None else max(0.0, self._wakes_at - time.monotonic())
        self._condition.wait(seconds)
        self._wakes_at = None
