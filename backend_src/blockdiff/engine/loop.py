"""The engine thread and its thread-safe front.

Everything that touches the engine happens on the one thread started here; callers only leave
commands in a queue. Callbacks run on that thread and must do no more than enqueue.
Knows nothing of Triton Inference Server.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from blockdiff.core import BlockResult, FinishReason, Request
from blockdiff.engine.engine import Engine
from blockdiff.engine.pressure import Pressure
from blockdiff.engine.rounds import StepCounts
from blockdiff.engine.statistics import ExpertCounts
from blockdiff.engine.step_shapes import REASONS
from blockdiff.engine.tickets import SlotTicket, TicketOffice
from blockdiff.errors import BlockdiffError, CapacityError, EngineDeadError, RequestError

logger = logging.getLogger(__name__)

OnResult = Callable[[BlockResult], None]
IDLE_TICK_SECONDS = 0.1
STOPPING = "the engine is shutting down; retry on another instance or after the restart"


class _Submit(NamedTuple):
    request: Request
    on_result: OnResult
    ticket: SlotTicket


class _Cancel(NamedTuple):
    uid: int
    reason: FinishReason


class EngineLoop:
    """Owns the thread that runs ``Engine.step``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._office = TicketOffice(engine.config.max_slots)
        self._pressure = Pressure(engine.config.max_slots)
        self._commands: deque[_Submit | _Cancel] = deque()
        self._wake = threading.Condition()
        self._listeners: dict[int, tuple[OnResult, SlotTicket]] = {}
        self._thread = threading.Thread(target=self._main, name="blockdiff-engine", daemon=True)
        self._stop_at: float | None = None
        self._death: EngineDeadError | None = None
        self._has_ended = False
        self.heartbeat = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    @property
    def is_healthy(self) -> bool:
        """Whether the thread runs and the engine works (a hang shows in ``heartbeat``)."""
        return self._death is None and self._thread.is_alive()

    def wait_for_slot(
        self, should_stop: Callable[[], FinishReason | None], poll_seconds: float = 0.05
    ) -> SlotTicket:
        """Block until a slot is free, in order of asking.

        Raises RequestStopped with the reason of ``should_stop``, CapacityError when the engine
        shuts down, EngineDeadError when it has died.
        """
        return self._office.wait(should_stop, poll_seconds)

    def submit(self, request: Request, on_result: OnResult, ticket: SlotTicket) -> None:
        """Check ``request`` here and hand it to the engine thread; uses up ``ticket``.

        On an error the ticket is given back and the error raised.
        """
        try:
            self._engine.validate(request)
            with self._wake:
                if self._death is not None:
                    raise EngineDeadError(str(self._death))
                if self._stop_at is not None or self._has_ended:
                    raise CapacityError(STOPPING)
                if request.uid in self._listeners:
                    raise RequestError(f"uid: {request.uid} is already running; it must be unique")
                self._listeners[request.uid] = (on_result, ticket)
                self._commands.append(_Submit(request, on_result, ticket))
                self._wake.notify()
        except BlockdiffError:
            ticket.release()
            raise

    def cancel(self, uid: int, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Ask the engine thread to end a request; its final result comes as usual."""
        with self._wake:
            self._commands.append(_Cancel(uid, reason))
            self._wake.notify()

    def shutdown(self, drain_seconds: float) -> None:
        """Refuse newcomers, let running requests finish for ``drain_seconds``, then end them."""
        self._office.close(CapacityError(STOPPING))
        with self._wake:
            self._stop_at = time.monotonic() + max(drain_seconds, 0.0)
            self._wake.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def snapshot(self) -> dict[str, Any]:
        """Counters for metrics. Numbers may be one round apart from each other."""
        counters = self._engine.counters
        forwards, pages = counters.forwards, self._engine.page_counts
        return {
            "is_healthy": self.is_healthy,
            "heartbeat_age_seconds": time.monotonic() - self.heartbeat,
            "running": len(self._listeners),
            "waiting": self._office.waiting,
            "slots": self._engine.config.max_slots,
            "free_slots": self._office.free,
            "pressure": self._pressure.value,
            "rounds": counters.rounds,
            "requests": counters.requests,
            "finished": counters.finished,
            "failed": counters.failed,
            "output_tokens": counters.output_tokens,
            "forwards_prefill": forwards.prefill,
            "forwards_preview": forwards.preview,
            "forwards_commit": forwards.commit,
            "forwards_commit_fused": forwards.commit_fused,
            "prefix_queried_tokens": counters.queried_tokens,
            "prefix_hit_tokens": counters.hit_tokens,
            "preemptions": counters.suspensions,
            "pages_total": pages.total,
            "pages_free": pages.free,
            "pages_kept": pages.kept,
            "pages_used": pages.total - pages.free - pages.kept,
            **_step_facts(self._engine.step_counts),
            **_expert_facts(self._engine.expert_counts),
        }

    def _main(self) -> None:
        try:
            self._engine.apply_thread_count()
            while self._turn():
                self.heartbeat = time.monotonic()
            self._end(STOPPING)
        except BaseException as error:
            logger.exception("the engine thread dies")
            self._die(error)

    def _turn(self) -> bool:
        """Commands, then one round or an idle wait; False when it is time to end."""
        for command in self._take_commands():
            self._run_command(command)
        pressure = self._pressure.update(self._office.waiting, self._office.free)
        self._engine.set_pressure(pressure)
        if self._engine.has_work:
            for result in self._engine.step():
                self._deliver(result)
        else:
            self._engine.check()
            self._engine.publish_statistics()
        if self._stop_at is None:
            return True
        is_idle = not self._engine.has_work and not self._commands
        return not is_idle and time.monotonic() < self._stop_at

    def _take_commands(self) -> list[_Submit | _Cancel]:
        with self._wake:
            if not self._commands and not self._engine.has_work and self._stop_at is None:
                self._wake.wait(IDLE_TICK_SECONDS)
            commands = list(self._commands)
            self._commands.clear()
        return commands

    def _run_command(self, command: _Submit | _Cancel) -> None:
        if isinstance(command, _Cancel):
            self._engine.cancel(command.uid, command.reason)
            return
        try:
            self._engine.add_request(command.request)
        except BlockdiffError as error:
            self._deliver(_failure(command.request, str(error)))

    def _deliver(self, result: BlockResult) -> None:
        with self._wake:
            listener = self._listeners.get(result.request_uid)
            if listener is not None and result.is_final:
                del self._listeners[result.request_uid]
        if listener is None:
            return
        on_result, ticket = listener
        # The slot is free before the caller can learn that its request has ended.
        if result.is_final:
            ticket.release()
        try:
            on_result(result)
        except Exception:
            logger.exception("the result callback of request %d failed", result.request_uid)
            if not result.is_final:
                self._engine.cancel(result.request_uid)

    def _end(self, error: str) -> None:
        """Fail whatever is left: running requests, then commands that were never run."""
        with self._wake:
            self._has_ended = True
            commands = list(self._commands)
            self._commands.clear()
        for result in self._engine.fail_all(error):
            self._deliver(result)
        for command in commands:
            if isinstance(command, _Submit):
                self._deliver(_failure(command.request, error))

    def _die(self, error: BaseException) -> None:
        text = str(error) if isinstance(error, EngineDeadError) else repr(error)
        death = EngineDeadError(f"the engine has died ({text}); restart the process")
        with self._wake:
            self._death = death
        self._office.close(death)
        try:
            self._end(str(death))
        except Exception:
            logger.exception("the engine cannot end its requests")
        for uid in list(self._listeners):
            self._deliver(_failed_result(uid, 0, str(death)))


def _expert_facts(counts: ExpertCounts | None) -> dict[str, Any]:
    if counts is None:
        return {}
    lines = zip(counts.layers, counts.imbalance.tolist(), counts.active.tolist(), strict=True)
    layers = {layer: {"imbalance": ratio, "active": share} for layer, ratio, share in lines}
    return {"expert_rows": counts.rows, "expert_layers": layers}


def _step_facts(counts: StepCounts) -> dict[str, int]:
    plain = {f"rounds_plain_{reason}": counts.plain[reason] for reason in REASONS}
    return {"rounds_replayed": counts.replayed, "rounds_decided": counts.decided, **plain}


def _failure(request: Request, error: str) -> BlockResult:
    return _failed_result(request.uid, len(request.input_ids), error)


def _failed_result(uid: int, num_input_tokens: int, error: str) -> BlockResult:
    return BlockResult(
        request_uid=uid,
        block_index=0,
        token_ids=(),
        log_probs=(),
        denoise_steps=0,
        num_input_tokens=num_input_tokens,
        is_final=True,
        error=error,
    )
