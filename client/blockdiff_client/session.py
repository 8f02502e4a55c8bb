"""One generation from first attempt to last block, without any input or output of its own.

Decides what to send, what an arriving response means, and whether an error may be tried again.
The sync and the async stream drive it; it knows nothing of channels, threads or event loops.
"""

from __future__ import annotations

import math
import random
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import wire
from .errors import (
    ClientError,
    DeadlineExceeded,
    InvalidArgument,
    ServerError,
    ServerSilent,
    Unavailable,
    from_text,
)
from .types import BlockEvent, CallOptions, Generation, RetryPolicy

# The server is told to stop a little before the client gives up, so that its partial answer
# (finish_reason "timeout") has time to arrive.
_SERVER_MARGIN_SECONDS = 0.25
_SERVER_MARGIN_SHARE = 0.1

_LONGEST_RETRY_HINT_SECONDS = 30.0


@dataclass(frozen=True)
class CallSettings:
    """How one call is made, apart from what is generated. Seconds throughout; None is no limit."""

    model: str
    deadline: float | None
    silence_timeout: float | None
    retry: RetryPolicy
    priority: int | None = None
    request_id: str | None = None


def split_options(
    defaults: CallSettings, options: Mapping[str, Any]
) -> tuple[CallSettings, dict[str, Any]]:
    """Call settings with the overrides in ``options``, and the generation fields left over."""
    names = CallOptions.__annotations__
    overrides = {name: value for name, value in options.items() if name in names}
    rest = {name: value for name, value in options.items() if name not in names}
    return replace(defaults, **overrides), rest


class Session:
    """State of one generation. Not thread-safe: one reader drives it."""

    def __init__(self, settings: CallSettings, values: Mapping[str, Any]) -> None:
        for name in ("deadline", "silence_timeout"):
            seconds = getattr(settings, name)
            if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
                raise InvalidArgument(f"{name}: {seconds!r} is not allowed (seconds above 0)")
        self.settings = settings
        self.request_id = settings.request_id or uuid.uuid4().hex
        self._request = wire.build_request(
            settings.model, self.request_id, values, priority=settings.priority
        )
        self._started = time.monotonic()
        self._attempts = 0
        self.blocks: list[BlockEvent] = []
        self._last: BlockEvent | None = None
        self.has_final_block = False
        self.has_final_flag = False
        self.has_error_message = False

    def remaining(self) -> float | None:
        """Seconds left until the deadline, at least 0."""
        if self.settings.deadline is None:
            return None
        return max(0.0, self._started + self.settings.deadline - time.monotonic())

    def next_attempt(self) -> Any:
        """The ModelInferRequest for a new attempt, its server-side timeout set to what is left."""
        self._attempts += 1
        self.has_error_message = False
        left = self.remaining()
        if left is not None:
            if left <= 0:
                raise self.deadline_error()
            margin = min(_SERVER_MARGIN_SECONDS, _SERVER_MARGIN_SHARE * left)
            microseconds = max(1, int((left - margin) * 1e6))
            self._request.parameters["timeout"].int64_param = microseconds
        return self._request

    def accept(self, message: Any) -> BlockEvent | None:
        """Event for a ModelStreamInferResponse; None when it carries nothing new for the reader."""
        if message.error_message:
            self.has_error_message = True
            raise from_text(message.error_message)
        response = message.infer_response
        is_last = wire.is_final_response(response)
        outputs = wire.decode_outputs(response)
        had_final_block = self.has_final_block
        self.has_final_flag |= is_last
        if had_final_block or not (outputs or is_last):
            return None
        event = self._event(outputs, is_last)
        self.has_final_block = event.is_final
        self._last = event
        # canvases are for those who watch, and too many to keep
        if not event.is_partial:
            self.blocks.append(event)
        return event

    def _event(self, outputs: Mapping[str, list[Any]], is_last: bool) -> BlockEvent:
        elapsed = time.monotonic() - self._started
        last_index = self._last.block_index if self._last is not None else 0
        if not outputs:
            return BlockEvent(block_index=last_index, is_final=True, elapsed=elapsed)
        event = wire.decode_block(outputs, elapsed)
        if event.block_index < last_index:
            raise ServerError(f"block {event.block_index} arrived after block {last_index}")
        return replace(event, is_final=event.is_final or is_last)

    def check_complete(self) -> None:
        """Raises when the stream ended without a final block."""
        if not self.has_final_block:
            raise ServerError("the stream ended before the final block")

    def retry_delay(self, error: ClientError) -> float:
        """Seconds to wait before the next attempt; raises ``error`` when another one is unsafe.

        Safe means: the server said "not now" (or never heard us) and nothing has arrived.
        """
        policy = self.settings.retry
        is_safe = isinstance(error, Unavailable) and not isinstance(error, ServerSilent)
        if self._last is not None or not is_safe or self._attempts >= policy.attempts:
            raise error
        ceiling = min(policy.cap, policy.base * 2.0 ** (self._attempts - 1))
        hint = min(error.retry_after or 0.0, _LONGEST_RETRY_HINT_SECONDS)
        delay = hint + random.uniform(0.5, 1.0) * ceiling
        left = self.remaining()
        if left is not None and delay >= left:
            raise error
        return delay

    def silence_error(self) -> ServerSilent:
        what = "first" if self._last is None else "next"
        seconds = self.settings.silence_timeout
        return ServerSilent(
            f"no sign of the {what} block for {seconds:g} s; the server may be dead",
            request_id=self.request_id,
        )

    def deadline_error(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"deadline of {self.settings.deadline:g} s passed after {len(self.blocks)} blocks",
            request_id=self.request_id,
        )

    def generation(self) -> Generation:
        """What has arrived so far."""
        return Generation.from_blocks(self.blocks, self.request_id)
