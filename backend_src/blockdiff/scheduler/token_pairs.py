"""Tokens of a request whose logits change, and how often its response holds them.

One request is one sorted array, to which each settled block is added once. Knows nothing of slots,
canvases or logits.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blockdiff.core import Request

# One token: how often it is there, and what its logit gets whether it is or not.
PAIR = np.dtype(
    [
        ("key", np.int64),  # its id; of several requests in one array: also the number of its own
        ("count", np.int32),
        ("bias", np.float32),
        ("start", np.float32),
        ("slope", np.float32),
        ("most", np.float32),
        ("is_once", np.bool_),
    ]
)
Pairs = npt.NDArray[Any]
KEY_BITS = 32


@dataclass
class TokenPairs:
    """The pairs of one request."""

    pairs: Pairs
    """[U] of ``PAIR``, by id; counts are those of the settled blocks."""
    is_counted: bool
    """Whether it matters what the response holds."""
    end: int = 0
    """Position behind the last token that is counted."""

    def catch_up(self, sequence: npt.NDArray[np.int32], final: int) -> None:
        """Count the tokens of ``sequence`` from ``end`` to position ``final``."""
        if self.is_counted and final > self.end:
            self.pairs = count_in(self.pairs, sequence[self.end : final].astype(np.int64))
            self.end = final


NO_PAIRS = TokenPairs(np.zeros(0, PAIR), False)


def pairs_of(request: Request) -> TokenPairs:
    """The pairs of a checked request whose end tokens are resolved, nothing counted yet."""
    own = request.sampling
    is_penalised = own.repetition_penalty != 1 or own.presence_penalty or own.frequency_penalty
    if not (is_penalised or own.logit_bias or own.ramps):
        return NO_PAIRS
    ramps = [
        (token, ramp)
        for ramp in own.ramps
        for token in (request.eos_ids or () if ramp.token_ids is None else ramp.token_ids)
    ]
    ids = sorted({token for token, _ in own.logit_bias} | {token for token, _ in ramps})
    pairs = np.zeros(len(ids), PAIR)
    pairs["key"] = ids
    biased = np.searchsorted(ids, [token for token, _ in own.logit_bias])
    pairs["bias"][biased] = [bias for _, bias in own.logit_bias]
    for token, ramp in ramps:
        pair = pairs[np.searchsorted(ids, token) : np.searchsorted(ids, token) + 1]
        pair["start"], pair["slope"], pair["most"] = ramp.start, ramp.slope, ramp.most
        pair["is_once"] = ramp.is_once
    is_counted = bool(is_penalised) or any(ramp.is_once for ramp in own.ramps)
    return TokenPairs(pairs, is_counted, len(request.input_ids))


def count_in(pairs: Pairs, keys: npt.NDArray[np.int64]) -> Pairs:
    """``pairs`` [U], sorted by key, with all ``keys`` [N] counted; the argument is left alone."""
    if not len(keys):
        return pairs
    found, counts = np.unique(keys, return_counts=True)
    where = np.searchsorted(pairs["key"], found)
    is_known = np.zeros(len(found), np.bool_)
    inside = where < len(pairs)
    is_known[inside] = pairs["key"][where[inside]] == found[inside]
    counted = pairs.copy()
    counted["count"][where[is_known]] += counts[is_known].astype(np.int32)
    new = np.zeros(int((~is_known).sum()), PAIR)
    new["key"], new["count"] = found[~is_known], counts[~is_known]
    return np.insert(counted, where[~is_known], new)
