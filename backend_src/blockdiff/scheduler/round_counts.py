"""Counts what kinds of rows a round has run, in all and by request.

Knows nothing of what the rows were for.
"""

import numpy as np

from blockdiff.scheduler.arrays import Ints
from blockdiff.scheduler.counters import Counters
from blockdiff.scheduler.plan import RoundPlan

_PREFILL, _PREVIEW, _COMMIT, _COMMIT_FUSED = range(4)


def count_round(counters: Counters, forwards: Ints, plan: RoundPlan) -> None:
    """Add the round of ``plan`` to ``counters`` and to ``forwards`` [slots, 4], a kind a column."""
    is_previewed = np.zeros(len(forwards), np.bool_)
    is_previewed[plan.preview_slots] = True
    is_fused = is_previewed[plan.commit_slots]
    kinds = (
        (_PREFILL, plan.prefill_slots),
        (_PREVIEW, plan.preview_slots),
        (_COMMIT, plan.commit_slots[~is_fused]),
        (_COMMIT_FUSED, plan.commit_slots[is_fused]),
    )
    for kind, slots in kinds:
        if len(slots):
            forwards[slots, kind] += 1
    total = counters.forwards
    counters.rounds += 1
    total.prefill += len(plan.prefill_slots)
    total.preview += len(plan.preview_slots)
    total.commit += int((~is_fused).sum())
    total.commit_fused += int(is_fused.sum())
