"""The one thread that talks to response senders, between the engine thread and Triton.

The engine thread only enqueues here, so it never waits for Triton. Also notices callers that gave
up. Knows nothing of models or of how a slot is given.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from blockdiff.core import BlockResult
from blockdiff.serving.errors import log, triton_error
from blockdiff.serving.outgoing import OutgoingStream

POLL_SECONDS = 0.1


class _Refusal(NamedTuple):
    sender: Any
    error: BaseException
    is_tagged: bool


class _Failure(NamedTuple):
    uid: int
    error: Exception


@dataclass
class _Waiting:
    """A canvas in the queue. The newer one of the same block takes its place there."""

    result: BlockResult | None  # None: its block is finished, nobody needs it any more


class ResponseDispatcher:
    """Delivers results in the order in which they were posted."""

    def __init__(self, pb_utils: Any, cancel: Callable[[int], None]) -> None:
        self._pb_utils = pb_utils
        self._cancel = cancel
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._streams: dict[int, OutgoingStream] = {}
        self._cancelled: set[int] = set()
        self._canvases: dict[int, _Waiting] = {}
        self._lock = threading.Lock()  # of _canvases
        self._thread = threading.Thread(target=self._main, name="blockdiff-dispatch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def open(self, stream: OutgoingStream) -> None:
        """Must come before the request's first result is posted."""
        self._queue.put(stream)

    def post(self, result: BlockResult) -> None:
        """Sends a result after all others; of canvases that pile up only the last is sent."""
        uid = result.request_uid
        with self._lock:
            waiting = self._canvases.get(uid)
            if not result.is_partial:
                if waiting is not None:
                    del self._canvases[uid]
                    waiting.result = None
                self._queue.put(result)
            elif waiting is not None:
                waiting.result = result
            else:
                self._canvases[uid] = _Waiting(result)
                self._queue.put(self._canvases[uid])

    def fail(self, uid: int, error: Exception) -> None:
        """Ends an opened request that never reached the engine."""
        self._queue.put(_Failure(uid, error))

    def refuse(self, sender: Any, error: BaseException, is_tagged: bool = False) -> None:
        """Ends a request that was never opened; ``is_tagged`` as in ``triton_error``."""
        self._queue.put(_Refusal(sender, error, is_tagged))

    def close(self) -> None:
        """Delivers what is queued, then ends the thread."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _main(self) -> None:
        poll_at = time.monotonic() + POLL_SECONDS
        while True:
            try:
                item = self._queue.get(timeout=max(0.0, poll_at - time.monotonic()))
            except queue.Empty:
                self._poll_callers()
                poll_at = time.monotonic() + POLL_SECONDS
                continue
            if item is None:
                return
            try:
                self._handle(item)
            except Exception as error:
                log(self._pb_utils, "error", f"block_diffusion: a response was not sent: {error!r}")

    def _handle(self, item: Any) -> None:
        if isinstance(item, OutgoingStream):
            self._streams[item.uid] = item
        elif isinstance(item, _Refusal):
            self._send_refusal(item)
        elif isinstance(item, _Failure):
            self._forget(item.uid).fail(item.error)
        elif isinstance(item, _Waiting):
            self._deliver_canvas(item)
        else:
            self._deliver(item)

    def _deliver_canvas(self, waiting: _Waiting) -> None:
        with self._lock:
            result = waiting.result
            if result is not None:
                del self._canvases[result.request_uid]
        if result is not None:
            self._deliver(result)

    def _deliver(self, result: BlockResult) -> None:
        stream = self._streams.get(result.request_uid)
        if stream is None:
            return
        try:
            stream.send(result)
        except Exception:
            # The caller cannot be reached any more: its slot must not stay taken.
            self._cancel(result.request_uid)
            self._forget(result.request_uid)
            raise
        if not stream.is_open:
            self._forget(result.request_uid)

    def _send_refusal(self, refusal: _Refusal) -> None:
        pb_utils = self._pb_utils
        error = triton_error(pb_utils, refusal.error, "block_diffusion", refusal.is_tagged)
        refusal.sender.send(
            pb_utils.InferenceResponse(error=error),
            flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
        )

    def _poll_callers(self) -> None:
        for uid, stream in self._streams.items():
            if uid not in self._cancelled and self._is_gone(stream):
                self._cancelled.add(uid)
                self._cancel(uid)

    def _is_gone(self, stream: OutgoingStream) -> bool:
        try:
            return stream.is_cancelled()
        except Exception as error:
            # Must not end this thread; who cannot be asked cannot be answered either.
            log(self._pb_utils, "error", f"block_diffusion: a caller was lost: {error!r}")
            return True

    def _forget(self, uid: int) -> OutgoingStream:
        self._cancelled.discard(uid)
        return self._streams.pop(uid)
