"""How the prefill tokens of one round are shared among newcomers.

Knows nothing of slots or requests: lengths in, chunk lengths out.
"""

import numpy as np

from blockdiff.scheduler.arrays import Ints

# Of the budget, what the others get while a higher priority could use all of it: 1 / 8.
SHARE_OF_OTHERS = 8


def share_budget(remaining: Ints, granule: Ints, priority: Ints, budget: int) -> Ints:
    """Chunk lengths [N] for newcomers in order of priority and, within one, of arrival.

    remaining [N] prompt tokens still to prefill, granule [N] the unit that chunks must be a
    multiple of (``remaining`` is one too), priority [N], the lowest number first. The first
    priority is served first; an eighth of the budget is for the others, so that nobody starves.
    Inside a priority everyone gets an equal share, and what short prompts leave over goes to the
    others. The first always advances, even by a granule larger than the budget.
    """
    if remaining.sum() <= budget:
        return remaining.copy()
    chunks = np.zeros(len(remaining), np.int64)
    is_first = priority == priority[0]
    reserved = min(budget // SHARE_OF_OTHERS, int(remaining[~is_first].sum()))
    left = budget
    for priorities in np.unique(priority):
        here = priority == priorities
        limit = left - reserved if priorities == priority[0] else left
        chunks[here] = _fill(remaining[here], granule[here], limit)
        left -= int(chunks[here].sum())
    if not chunks[0]:
        # A granule larger than its share.
        chunks[0] = granule[0]
        rest = max(budget - int(granule[0]), 0)
        chunks[1:] = _fill(remaining[1:], granule[1:], rest)
    return chunks


def _fill(remaining: Ints, granule: Ints, budget: int) -> Ints:
    """Equal shares, short prompts first; the rest that granules leave goes to the oldest."""
    count = len(remaining)
    chunks = np.zeros(count, np.int64)
    left = budget
    for served, index in enumerate(np.argsort(remaining, kind="stable")):
        share = left // (count - served)
        chunks[index] = min(remaining[index], share - share % granule[index])
        left -= int(chunks[index])
    for index in range(count):
        more = min(int(remaining[index] - chunks[index]), left - left % int(granule[index]))
        chunks[index] += more
        left -= more
    return chunks
