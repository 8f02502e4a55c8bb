"""What the benchmark says to a peer and hears from it: one JSON object a line on stdin and stdout.

Imports the standard library alone, since every peer's environment reads it. Knows no peer.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Protocol


@dataclass(frozen=True)
class Setup:
    """Said once: where the weights are and how many CPU threads a peer may use."""

    folder: str
    threads: int


@dataclass(frozen=True)
class Job:
    """Prompts of equal length to be continued greedily, as one measurement.

    ``threshold`` None: every block takes ``steps`` steps. Otherwise a step settles what is more
    confident, or one token. ``arrivals``: seconds after the start at which each prompt arrives.
    """

    prompts: list[list[int]]
    max_tokens: int
    block_length: int
    steps: int
    threshold: float | None
    mask_token_id: int
    arrivals: list[float]


@dataclass(frozen=True)
class Outcome:
    """Output tokens by prompt; forwards of the model, each counted once for the whole batch;
    seconds from the start to each prompt's last token; CPU seconds of the process."""

    tokens: list[list[int]]
    forwards: int
    finished: list[float]
    cpu_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.finished)


class Peer(Protocol):
    """A loaded side of the comparison."""

    def run(self, job: Job) -> Outcome:
        """Continue all prompts of ``job``."""
        ...


def run_measured(peer: Peer, job: Job) -> Outcome:
    """``peer.run`` with the CPU time it took."""
    before = time.process_time()
    outcome = peer.run(job)
    return replace(outcome, cpu_seconds=time.process_time() - before)


@dataclass(frozen=True)
class Batch:
    """What a loop that takes whole batches made of one."""

    tokens: list[list[int]]
    forwards: int


def run_in_batches(job: Job, run_batch: Callable[[list[list[int]]], Batch]) -> Outcome:
    """The best a loop that lets nobody join can do: everyone who has arrived is the next batch."""
    start, forwards = time.monotonic(), 0
    tokens: list[list[int]] = [[] for _ in job.prompts]
    finished = [0.0] * len(job.prompts)
    waiting = sorted(range(len(job.prompts)), key=lambda number: job.arrivals[number])
    while waiting:
        wait_until(start + job.arrivals[waiting[0]])
        now = time.monotonic() - start
        ready = [number for number in waiting if job.arrivals[number] <= now]
        batch = run_batch([job.prompts[number] for number in ready])
        forwards += batch.forwards
        now = time.monotonic() - start
        for number, output in zip(ready, batch.tokens, strict=True):
            tokens[number], finished[number] = output, now
        waiting = [number for number in waiting if number not in ready]
    return Outcome(tokens, forwards, finished)


def wait_until(moment: float) -> None:
    """Sleep until ``time.monotonic()`` reaches ``moment``."""
    time.sleep(max(moment - time.monotonic(), 0.0))


def serve(load: Callable[[Setup], Peer]) -> None:
    """A peer's main: read a setup, then jobs until the end of input; answer each with a line."""
    # Whatever the peer's libraries print must not mix with answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    peer = load(Setup(**json.loads(sys.stdin.readline())))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        outcome = run_measured(peer, Job(**json.loads(line)))
        print(json.dumps(asdict(outcome)), file=answers, flush=True)
