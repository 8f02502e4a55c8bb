"""Which rows run in the next round and what their results mean for each request.

Arrays per slot on the host; knows nothing of torch, models, threads or text rules.
"""

from blockdiff.scheduler.plan import RoundPlan, build_plan
from blockdiff.scheduler.scheduler import NOTHING, Decisions, Scheduler, StopFinder
from blockdiff.scheduler.table import MAX_EOS_IDS, BlockOpening, SlotTable

__all__ = [
    "MAX_EOS_IDS",
    "NOTHING",
    "BlockOpening",
    "Decisions",
    "RoundPlan",
    "Scheduler",
    "SlotTable",
    "StopFinder",
    "build_plan",
]
