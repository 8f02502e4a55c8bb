"""Slot tickets: the right to submit one request, handed out in order of asking.

Knows nothing of the engine beyond how many slots it has.
"""

import threading
from collections import deque
from collections.abc import Callable

from blockdiff.core import FinishReason
from blockdiff.errors import BlockdiffError


class RequestStopped(BlockdiffError):
    """A waiting request gave up (cancelled or out of time); ``reason`` says which."""

    def __init__(self, reason: FinishReason) -> None:
        super().__init__(f"the request was stopped while it waited for a slot ({reason})")
        self.reason = reason


class SlotTicket:
    """One reserved slot. Used up by ``EngineLoop.submit`` or given back by ``release``."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back
        self._is_open = True
        self._lock = threading.Lock()

    def release(self) -> None:
        """Give the slot back; does nothing the second time."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
        if was_open:
            self._give_back()

    def __enter__(self) -> "SlotTicket":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


class TicketOffice:
    """Counts reserved slots; waiters are served first come, first served."""

    def __init__(self, num_slots: int) -> None:
        self._changed = threading.Condition()
        self._free = num_slots
        self._waiters: deque[object] = deque()
        self._closed: BlockdiffError | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    @property
    def free(self) -> int:
        return self._free

    def close(self, error: BlockdiffError) -> None:
        """From now on every caller, waiting or new, gets ``error``."""
        with self._changed:
            self._closed = self._closed or error
            self._changed.notify_all()

    def wait(
        self, should_stop: Callable[[], FinishReason | None], poll_seconds: float
    ) -> SlotTicket:
        """Block until a slot is free; woken by a release, by ``close`` and every poll interval.

        Raises RequestStopped when ``should_stop`` names a reason, or the error of ``close``.
        """
        me = object()
        with self._changed:
            self._waiters.append(me)
        try:
            while True:
                # Foreign code: called without the lock.
                reason = should_stop()
                with self._changed:
                    if self._closed is not None:
                        raise type(self._closed)(str(self._closed))
                    if reason is not None:
                        raise RequestStopped(reason)
                    if self._free > 0 and self._waiters[0] is me:
                        self._free -= 1
                        return SlotTicket(self.give_back)
                    self._changed.wait(poll_seconds)
        finally:
            with self._changed:
                self._waiters.remove(me)
                self._changed.notify_all()

    def give_back(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify_all()
