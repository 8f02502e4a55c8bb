"""Watches the processes of the other ranks, so that no exchange waits for one that is gone.

A rank that ends, or a command that takes too long, is a fault: it is named, then all followers
are killed, which makes every exchange that waits for them fail at once. Knows nothing of models.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from blockdiff.errors import BlockdiffError, EngineDeadError
from blockdiff.parallel.launch import END_SECONDS, Follower

TICK_SECONDS = 0.1
# ranks that fail because of another one do so within this time of it
GRACE_SECONDS = 1.0


class Watch:
    """The thread that reads what followers report; the only reader of their connections."""

    def __init__(self, start: Callable[[], Sequence[Follower]], abort: Callable[[], None]) -> None:
        """``start`` makes the followers, on this thread; ``abort`` is called, once, after a fault.

        Followers are killed when the thread that started them ends, so it must be this one.
        """
        self.followers: Sequence[Follower] = ()
        self._start = start
        self._abort = abort
        self._has_started = threading.Event()
        self._fault: BlockdiffError | None = None
        self._has_news = threading.Condition()
        self._deadline: float | None = None
        self._limit = 0.0
        self._is_stopping = False
        self._thread = threading.Thread(target=self._main, name="blockdiff-ranks", daemon=True)
        self._thread.start()
        self._has_started.wait()

    def check(self) -> None:
        """Raise the fault, if there is one."""
        if self._fault is not None:
            raise type(self._fault)(str(self._fault))

    def begin(self, limit_seconds: float) -> None:
        """From now on the other ranks are waited for, and not longer than this."""
        self._limit = limit_seconds
        self._deadline = time.monotonic() + limit_seconds

    def end(self) -> None:
        """Nobody is waited for any more."""
        self._deadline = None

    def wait_until_ready(self) -> None:
        """Return when every follower has reported that it is; raise the fault otherwise."""
        with self._has_news:
            self._has_news.wait_for(
                lambda: self._fault is not None or all(f.is_ready for f in self.followers)
            )
        self.check()

    def explain(self, seconds: float = END_SECONDS) -> None:
        """Raise the fault that comes to light within ``seconds``; return if none does."""
        with self._has_news:
            self._has_news.wait_for(lambda: self._fault is not None, seconds)
        self.check()

    def note(self, fault: BlockdiffError) -> BlockdiffError:
        """Make ``fault`` the answer to all later calls, unless there was one before; returns it."""
        with self._has_news:
            self._fault = self._fault or fault
            return self._fault

    def stop(self) -> None:
        """End all followers and the thread."""
        self._is_stopping = True
        if self._thread is not threading.current_thread():
            self._thread.join()
        for follower in self.followers:
            follower.connection.close()
        for follower in self.followers:
            follower.end(END_SECONDS)

    def _main(self) -> None:
        try:
            self.followers = self._start()
        except OSError as error:
            self.note(EngineDeadError(f"tensor parallel: cannot start a process: {error}"))
            return
        finally:
            self._has_started.set()
        open_ends: dict[Any, Follower] = {f.connection: f for f in self.followers}
        while not self._is_stopping:
            ended = False
            for connection in wait(list(open_ends), TICK_SECONDS):
                ended |= not self._read(open_ends[connection])
            deadline = self._deadline
            if ended:
                self._fail(self._cause())
            elif deadline is not None and time.monotonic() > deadline:
                self._fail(self._late())
            if self._fault is not None:
                return

    def _read(self, follower: Follower) -> bool:
        """Take in one report; False when the follower has closed its end."""
        try:
            report = json.loads(follower.connection.recv_bytes())
        except (EOFError, OSError):
            return False
        with self._has_news:
            follower.reports.append(report)
            self._has_news.notify_all()
        return True

    def _cause(self) -> BlockdiffError:
        """The fault of a rank that ended, not of those that it took along."""
        until = time.monotonic() + GRACE_SECONDS
        while True:
            dead = [f for f in self.followers if f.process.poll() is not None]
            culprits = [follower for follower in dead if not follower.is_victim]
            if culprits or time.monotonic() > until:
                return (culprits or dead or list(self.followers))[0].epitaph()
            time.sleep(TICK_SECONDS / 10)

    def _late(self) -> BlockdiffError:
        """The fault of ranks that did not answer in time."""
        stopped = [follower for follower in self.followers if follower.is_stopped()]
        names = ", ".join(follower.label for follower in stopped or self.followers)
        why = "stopped by a signal" if stopped else "stuck or too slow"
        return EngineDeadError(f"{names} did not answer within {self._limit:g} s: {why}")

    def _fail(self, fault: BlockdiffError) -> None:
        for follower in self.followers:
            follower.process.kill()
        self._abort()
        self.note(fault)
        with self._has_news:
            self._has_news.notify_all()
