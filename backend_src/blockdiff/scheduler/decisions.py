"""What a scheduler is told from outside: what a round decided, and where stop strings are.

Data only; knows nothing of slots or of who fills it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from blockdiff.scheduler.arrays import Flags, Floats, Ints


class StopFinder(Protocol):
    """Looks for stop strings in one response as its tokens settle."""

    def push(self, token_ids: Sequence[int]) -> tuple[str, int] | None:
        """The stop string completed by these tokens and how many of them it needs, or None."""
        ...


class Guesses(NamedTuple):
    """What a preview held for the best token of every place that it decided, [G, B] each."""

    tokens: Ints  # NO_TOKEN where it did not look
    log_probs: Floats


class TopTokens(NamedTuple):
    """Most probable tokens of some decided rows, best first."""

    groups: Ints  # [N]
    places: Ints  # [N]
    ids: Ints  # [N, T]
    log_probs: Floats  # [N, T]


@dataclass(frozen=True)
class Decisions:
    """What a round made of the open block of each of the plan's groups, on the host.

    Filled by the engine. B is the longest block length; places beyond a block are left as they are.
    """

    canvas: Ints
    """[G, B] the block's next tokens, whether they are final or not."""
    log_probs: Floats
    """[G, B] of those tokens; a value that is not finite fails the request."""
    is_open: Flags
    """[G, B] places that another preview has to decide."""
    is_settled: Flags
    """[G] no token of a place that is not open will change."""
    guesses: Guesses | None = None
    """For requests that watch their canvases; None where ``canvas`` says all there is."""
    origins: Ints | None = None
    """[G, B] place that each token had before, -1 for a new mask; None: nothing has moved."""
    top: TopTokens | None = None
    """Of rows whose requests ask for them."""


NOTHING = Decisions(
    canvas=np.zeros((0, 1), np.int64),
    log_probs=np.zeros((0, 1), np.float32),
    is_open=np.zeros((0, 1), np.bool_),
    is_settled=np.zeros(0, np.bool_),
)
"""The decisions of a round without groups."""
