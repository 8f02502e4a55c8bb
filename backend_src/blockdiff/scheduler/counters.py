"""Totals since the start. Written by the thread that runs the engine only."""

from dataclasses import dataclass, field
from typing import NamedTuple

from blockdiff.core import ForwardCounts


class PageCounts(NamedTuple):
    """Pages of the memory for keys and values."""

    total: int
    free: int
    kept: int  # of prefixes that no request uses; given up when pages are needed


@dataclass
class Counters:
    """What the engine has done so far."""

    rounds: int = 0
    requests: int = 0
    finished: int = 0
    failed: int = 0
    output_tokens: int = 0
    queried_tokens: int = 0  # of prompts, looked up among kept prefixes
    hit_tokens: int = 0  # of these, not computed again
    suspensions: int = 0  # of requests that lost their pages to others
    forwards: ForwardCounts = field(default_factory=ForwardCounts)
