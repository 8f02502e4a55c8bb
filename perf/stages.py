"""Where a round's time goes: named functions of the engine, each without those it calls.

Knows the names of the engine's functions; knows nothing of models or workloads.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from blockdiff.engine import engine, forward
from blockdiff.engine.engine import Engine
from blockdiff.scheduler.scheduler import Scheduler

Clock = Callable[[], float]
OTHER = "everything else"
# stage, where the function lives, its name there
STAGES: tuple[tuple[str, Any, str], ...] = (
    ("admit newcomers", Engine, "add_request"),
    ("plan", Scheduler, "plan"),
    ("batch assembly", forward, "make_batch"),
    ("rules of rows", forward, "make_rules"),
    ("choose tokens", forward, "_choose"),
    ("copy to the host", forward, "fetch"),
    ("accept and write", forward, "decide"),
    ("apply", Scheduler, "apply"),
    ("finish blocks", Scheduler, "_finish_blocks"),
    (OTHER, engine, "run_round"),
)


class Stopwatch:
    """Seconds by stage; a stage stands still while another one runs inside it."""

    def __init__(self, clock: Clock) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._clock = clock
        self._inside: list[float] = []

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose own time counts as ``stage``."""

        def run(*values: Any, **named: Any) -> Any:
            began = self._clock()
            self._inside.append(0.0)
            try:
                return function(*values, **named)
            finally:
                spent = self._clock() - began
                self.seconds[stage] += spent - self._inside.pop()
                if self._inside:
                    self._inside[-1] += spent

        return run


@contextmanager
def watched(stopwatch: Stopwatch) -> Iterator[None]:
    """All stages of the engine are timed inside."""
    originals = [(owner, name, getattr(owner, name)) for _, owner, name in STAGES]
    try:
        for (stage, owner, name), (*_, function) in zip(STAGES, originals, strict=True):
            setattr(owner, name, stopwatch.timed(stage, function))
        yield
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)


def cpu_clock() -> float:
    """Seconds that this thread has computed: what other programs take does not count."""
    return time.thread_time()
