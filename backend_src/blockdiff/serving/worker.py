"""A background thread with a beginning and an end. Knows nothing of what it does."""

import threading
from abc import ABC, abstractmethod


class Worker(ABC):
    """``run`` works on a thread of its own until ``_is_closing`` is set."""

    def __init__(self, name: str) -> None:
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)

    @abstractmethod
    def run(self) -> None:
        """The thread's work; looks at ``_is_closing`` at least every few tenths of a second."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, if it was started, and waits for it."""
        self._is_closing.set()
        if self._thread.is_alive():
            self._thread.join()
