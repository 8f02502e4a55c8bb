"""Progress of long reads as log lines, for servers whose start nobody watches on a terminal.

Knows bytes and time; knows nothing of what is read.
"""

import time
from collections.abc import Callable

SECONDS_BETWEEN_LINES = 5.0


class LoggedProgress:
    """Called with (bytes done, bytes in all); says a line every few seconds, none for short work.

    ``say`` takes the line; ``clock`` gives seconds.
    """

    def __init__(
        self, what: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._say, self._clock = what, say, clock
        self._began = self._said = clock()

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if now - self._said < SECONDS_BETWEEN_LINES:
            return
        self._said = now
        speed = done / (now - self._began)
        left = f"{(total - done) / speed:.0f} s left" if speed else "no speed yet"
        size = f"{done / 1e9:.2f} of {total / 1e9:.2f} GB"
        self._say(f"{self._what}: {size}, {speed / 1e9:.2f} GB/s, {left}")
