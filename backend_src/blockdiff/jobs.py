"""Runs jobs on an engine, each from its arrival on, and keeps what came out.

Knows nothing of files, flags or how results are shown.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from blockdiff.core import BlockResult, FinishReason, ForwardCounts, Request
from blockdiff.engine import Engine
from blockdiff.errors import BlockdiffError
from blockdiff.text import TextStream, Tokenizer


class DrawNames(Protocol):
    """Names of recorded draws, one per canvas each."""

    @property
    def start_canvas(self) -> list[str]: ...

    @property
    def sampled(self) -> list[str]: ...

    @property
    def random(self) -> list[str]: ...


@dataclass(frozen=True)
class Job:
    """One request to run. ``place`` names it in error texts ("" for flags)."""

    request: Request
    name: str | None = None
    arrive_after_seconds: float = 0.0
    place: str = ""
    replay: DrawNames | None = None
    shows_log_probs: bool = False
    shows_stop: bool = False
    """Whether the text has what ended the answer."""


@dataclass
class Outcome:
    """What one job gave. Filled block by block."""

    job: Job
    blocks: list[BlockResult] = field(default_factory=list)
    seconds: float = 0.0
    """From arrival (not from getting a slot) to the last block."""

    @property
    def output_ids(self) -> list[int]:
        return [token for block in self.blocks for token in block.token_ids]

    @property
    def final(self) -> BlockResult:
        return self.blocks[-1]

    def fail_from(self, block_index: int, error: str) -> None:
        """Drop blocks from ``block_index`` on and let the job have failed there."""
        kept = [block for block in self.blocks if block.block_index < block_index]
        last = replace(self.final, token_ids=(), log_probs=(), finish_reason=None, error=error)
        self.blocks = [*(replace(block, is_final=False) for block in kept), last]

    @property
    def forwards(self) -> ForwardCounts:
        return self.final.forwards or ForwardCounts()


def run_jobs(
    engine: Engine,
    jobs: Sequence[Job],
    on_done: Callable[[Outcome], None] = lambda outcome: None,
    on_canvas: Callable[[BlockResult], None] = lambda result: None,
) -> list[Outcome]:
    """Run all jobs, in order of arrival, as slots allow; outcomes in the order of ``jobs``.

    ``on_canvas`` is told of every result of requests that want canvases.
    """
    start = time.monotonic()
    outcomes = {job.request.uid: Outcome(job) for job in jobs}
    waiting = deque(sorted(jobs, key=lambda job: job.arrive_after_seconds))
    while waiting or engine.has_work:
        now = time.monotonic() - start
        while waiting and engine.free_slots and waiting[0].arrive_after_seconds <= now:
            engine.add_request(waiting.popleft().request)
        if not engine.has_work:
            time.sleep(max(waiting[0].arrive_after_seconds - now, 0.0))
            continue
        for result in engine.step():
            outcome = outcomes[result.request_uid]
            if outcome.job.request.wants_canvases:
                on_canvas(result)
            if result.is_partial:
                continue
            outcome.blocks.append(result)
            if result.is_final:
                arrival = start + outcome.job.arrive_after_seconds
                outcome.seconds = time.monotonic() - arrival
                on_done(outcome)
    return list(outcomes.values())


def require_success(outcomes: Sequence[Outcome]) -> None:
    """Raise when a request failed inside the engine; its output says nothing then."""
    errors = [outcome.final.error for outcome in outcomes if outcome.final.error is not None]
    if errors:
        raise BlockdiffError(f"{len(errors)} of {len(outcomes)} requests failed: {errors[0]}")


def output_text(
    outcome: Outcome, model_eos: Sequence[int], tokenizer: Tokenizer, skip_special: bool = True
) -> str:
    """The response as text: without what ended it, unless the job shows that."""
    request, ids = outcome.job.request, outcome.output_ids
    eos_ids = model_eos if request.eos_ids is None else request.eos_ids
    end_ids = (*(() if request.ignore_eos else eos_ids), *request.stop_ids)
    ended, shows = outcome.final.finish_reason is FinishReason.STOP, outcome.job.shows_stop
    if ended and ids and ids[-1] in end_ids and not shows:
        ids = ids[:-1]
    stream = TextStream(tokenizer, request.stop_strings, skip_special, request.min_tokens, shows)
    return stream.push(ids, final=True).text
