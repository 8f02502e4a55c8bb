"""From hidden rows to what the grouped products need: three or four kernels.

Knows the order of the kernels; knows nothing of layers.
"""

from torch import Tensor

from blockdiff_kernels.coreset import RowBlocks
from blockdiff_kernels.cost import Cost
from blockdiff_kernels.moe.plan import RouterPlan, Routing
from blockdiff_kernels.moe.triton.choice import choose
from blockdiff_kernels.moe.triton.grouping import group
from blockdiff_kernels.moe.triton.pools import pool
from blockdiff_kernels.moe.triton.scores import score


def choose_experts(
    x: Tensor,
    plan: RouterPlan,
    blocks: RowBlocks | None = None,
    count: Tensor | None = None,
    hits: Tensor | None = None,
) -> Routing:
    """See the package ``moe``."""
    logits, rows = score(x, plan, count)
    allowed = None
    if plan.rule.pool is not None:
        assert blocks is not None, "pools are those of blocks"
        allowed = pool(logits, plan, blocks)
    weights, ids, histogram = choose(logits, plan, blocks, allowed, count)
    return Routing(rows, weights, ids, group(ids, histogram, plan, count, hits))


def cost(rows: int, hidden: int, plan: RouterPlan, itemsize: int = 2) -> Cost:
    """Of ``choose_experts``: the router once, rows in and out, and three numbers an entry."""
    outputs = plan.experts + int(plan.is_gated)
    entries = rows * plan.chosen
    moved = itemsize * (hidden * outputs + 2 * rows * hidden) + 4 * 3 * entries
    launches = 3 if plan.rule.pool is None else 4
    return Cost(moved, 2.0 * rows * hidden * outputs, launches)
