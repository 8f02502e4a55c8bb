"""Counts what the rows of a round did, for each request and for all together.

Knows the slot table and the plan; knows nothing of what was decided.
"""

import numpy as np

from blockdiff.scheduler.counters import Counters
from blockdiff.scheduler.plan import RoundPlan
from blockdiff.scheduler.table import SlotTable

_PREFILL, _PREVIEW, _COMMIT, _COMMIT_FUSED = range(4)


def count_round(table: SlotTable, counters: Counters, plan: RoundPlan) -> None:
    """Add the rows of ``plan`` to what is counted of its requests and of all."""
    is_previewed = np.zeros(table.num_slots, np.bool_)
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
            table.forwards[slots, kind] += 1
    total = counters.forwards
    counters.rounds += 1
    total.prefill += len(plan.prefill_slots)
    total.preview += len(plan.preview_slots)
    total.commit += int((~is_fused).sum())
    total.commit_fused += int(is_fused.sum())
