"""From hidden rows to what the grouped products need: three or four kernels.

Knows the order of the kernels; knows nothing of layers.
"""

from torch import Tensor

from blockdiff_kernels.coreset import RowBlocks
from blockdiff_kernels.moe.plan import RouterPlan, Routing
from blockdiff_kernels.moe.triton.choice import choose
from blockdiff_kernels.moe.triton.grouping import group
from blockdiff_kernels.moe.triton.pools import pool
from blockdiff_kernels.moe.triton.scores import score
from blockdiff_kernels.projection.sources import Normed, Plain


def choose_experts(
    source: Plain | Normed,
    plan: RouterPlan,
    blocks: RowBlocks | None = None,
    count: Tensor | None = None,
    hits: Tensor | None = None,
) -> Routing:
    """See the package ``moe``."""
    logits, rows = score(source, plan, count)
    allowed = None
    if plan.rule.pool is not None:
        assert blocks is not None, "pools are those of blocks"
        allowed = pool(logits, plan, blocks)
    weights, ids, histogram = choose(logits, plan, blocks, allowed, count)
    return Routing(rows, weights, ids, group(ids, histogram, plan, count, hits))
