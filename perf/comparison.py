"""Runs the same jobs on all sides, taking turns, and makes medians and ratios of them.

Knows jobs and outcomes; knows nothing of models, processes or tables.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from perf.peers.protocol import Job, Outcome, Peer


@dataclass(frozen=True)
class Workload:
    """What is asked of a model."""

    prompt_tokens: int
    max_tokens: int
    block_length: int
    steps: int
    vocabulary: int
    mask_token_id: int

    def job(self, arrivals: list[float], threshold: float | None = None, seed: int = 0) -> Job:
        """A job of as many prompts as there are arrivals; the same seed gives the same prompts."""
        draw = random.Random(seed)
        # the last ids are special tokens
        ids = range(self.vocabulary - 8)
        prompts = [draw.choices(ids, k=self.prompt_tokens) for _ in arrivals]
        return Job(
            prompts=prompts,
            max_tokens=self.max_tokens,
            block_length=self.block_length,
            steps=self.steps,
            threshold=threshold,
            mask_token_id=self.mask_token_id,
            arrivals=arrivals,
        )


@dataclass(frozen=True)
class Row:
    """One side in one scenario; medians over the repeats."""

    scenario: str
    side: str
    tokens_per_second: float
    tokens_per_cpu_second: float
    forwards: int
    forwards_per_token: float
    mean_finish: float
    """Seconds from the first arrival to a request's end, averaged over requests."""
    ratio: float
    """Ours to this side in tokens per second, median of the ratios of single repeats."""
    cpu_ratio: float
    """The same per CPU second."""
    has_equal_tokens: bool
    samples: list[float]
    """Tokens per second of every repeat."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def compare(
    scenario: str,
    sides: Mapping[str, Peer],
    job: Job,
    repeats: int,
    done: Callable[[], None] = lambda: None,
) -> list[Row]:
    """One row per side; the first side of ``sides`` is ours. ``done`` is called after each run."""
    found: dict[str, list[Outcome]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, peer in sides.items():
            found[name].append(peer.run(job))
            done()
    ours = next(iter(found.values()))
    return [_row(scenario, name, outcomes, ours) for name, outcomes in found.items()]


def _row(scenario: str, name: str, outcomes: list[Outcome], ours: list[Outcome]) -> Row:
    count = sum(map(len, outcomes[0].tokens))
    speeds = [count / outcome.seconds for outcome in outcomes]
    forwards = int(median(outcome.forwards for outcome in outcomes))
    pairs = list(zip(ours, outcomes, strict=True))
    return Row(
        scenario=scenario,
        side=name,
        tokens_per_second=median(speeds),
        tokens_per_cpu_second=median(count / outcome.cpu_seconds for outcome in outcomes),
        forwards=forwards,
        forwards_per_token=forwards / count,
        mean_finish=median(sum(o.finished) / len(o.finished) for o in outcomes),
        ratio=median(theirs.seconds / own.seconds for own, theirs in pairs),
        cpu_ratio=median(theirs.cpu_seconds / own.cpu_seconds for own, theirs in pairs),
        has_equal_tokens=all(own.tokens == theirs.tokens for own, theirs in pairs),
        samples=speeds,
    )
