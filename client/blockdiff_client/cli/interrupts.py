"""Ctrl-C while an answer arrives: it cancels the answer, wherever this thread is.

An exception raised inside gRPC's own waiting can leave its channel unable to start another call.
Knows nothing of conversations.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from ..sync import BlockStream

if TYPE_CHECKING:
    from typing_extensions import Self


class Interrupts:
    """While entered, Ctrl-C cancels the stream that is watched, now or as soon as one is."""

    def __init__(self) -> None:
        self.has_come = False
        self._stream: BlockStream | None = None
        self._before: Any = None

    def watch(self, stream: BlockStream) -> None:
        """Cancel ``stream`` on Ctrl-C, or at once if that has come."""
        self._stream = stream
        if self.has_come:
            stream.cancel()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.has_come = True
        if self._stream is not None:
            # not in this thread, which may hold the locks that cancelling takes
            threading.Thread(target=self._stream.cancel, daemon=True).start()

    def __enter__(self) -> Self:
        # only the main thread gets signals and may say what they do
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
