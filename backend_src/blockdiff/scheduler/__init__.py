"""Which rows run in the next round and what their results mean for each request.

Arrays per slot on the host; knows nothing of torch, models, threads or text rules.
"""

from blockdiff.scheduler.arrays import MAX_EOS_IDS
from blockdiff.scheduler.certify import Certifier, Masks
from blockdiff.scheduler.decisions import NOTHING, Decisions, StopFinder
from blockdiff.scheduler.memory import MemoryRules
from blockdiff.scheduler.plan import RoundPlan
from blockdiff.scheduler.scheduler import Scheduler
from blockdiff.scheduler.table import BlockOpening, SlotTable
from blockdiff.scheduler.thinking import ThinkWatch

__all__ = [
    "MAX_EOS_IDS",
    "NOTHING",
    "BlockOpening",
    "Certifier",
    "Decisions",
    "Masks",
    "MemoryRules",
    "RoundPlan",
    "Scheduler",
    "SlotTable",
    "StopFinder",
    "ThinkWatch",
]
