"""What rows may choose and what is asked of them; what they chose. Data only."""

from enum import IntEnum
from typing import NamedTuple

from torch import Tensor


class Entropy(IntEnum):
    """Of which softmax the entropy is wanted."""

    NONE = 0
    PLAIN = 1
    """Of the logits as they are, whatever is banned."""
    SCALED = 2
    """Of the logits that are not banned, over each row's temperature. Every row is drawn."""


class Controls(NamedTuple):
    """Ids of the tokens of insert and delete editing."""

    mask: int
    delete: int
    split: int


MOST_LISTED = 64
"""The largest top-k whose tokens kernels look up; a larger one cannot go with a top-p."""


class Filters(NamedTuple):
    """Which tokens rows are drawn from: the ``top_k`` best and, of these, the fewest that reach
    ``top_p`` of their probability."""

    top_k: Tensor  # [L] int32, 0 is off
    top_p: Tensor  # [L] float32, 1 is off
    most_listed: int  # largest top-k of drawn rows up to ``MOST_LISTED``; 0: none has one
    has_others: bool  # whether a drawn row has a larger top-k, or a top-p alone


class RowDraws(NamedTuple):
    """How rows are drawn, [L] each."""

    temperature: Tensor  # float32; 0: the row is greedy
    keys: Tensor  # [L, 2] int32 words of ``noise``
    filters: Filters | None = None


class Rules(NamedTuple):
    """For L rows."""

    banned: Tensor  # [L, W] int32 ids that the row may not choose; -1: none
    draws: RowDraws | None = None  # None: every row is greedy
    entropy: Entropy = Entropy.NONE
    controls: Controls | None = None  # set: ``Choice.others`` is wanted
    live: Tensor | None = None  # [1] int32 how many of the rows count, on the device; None: all


class Others(NamedTuple):
    """For insert and delete editing: [L] int64 and float32 log probabilities."""

    tokens: Tensor  # as ``Choice.tokens``, or the mask where it is more likely
    log_probs: Tensor
    final_tokens: Tensor  # the best that is neither banned nor the delete or split token
    final_log_probs: Tensor


class Peaks(NamedTuple):
    """What it takes to know probabilities of scaled logits: [L] float32."""

    best: Tensor  # greatest logit that is not banned
    total: Tensor  # sum of exp((l - best) / T) over what is not banned


class Choice(NamedTuple):
    """[L] int64 ids and float32 log probabilities under the whole softmax at temperature 1."""

    tokens: Tensor  # drawn, or the best where the row is greedy
    log_probs: Tensor
    best: Tensor  # of the tokens that are not banned; equal ones: the lowest id
    best_log_probs: Tensor
    entropy: Tensor | None = None  # in nats, float32
    others: Others | None = None
    peaks: Peaks | None = None  # with ``Entropy.SCALED``
