"""How the prefill tokens of one round are shared among newcomers.

Knows nothing of slots or requests: lengths in, chunk lengths out.
"""

import numpy as np

from blockdiff.scheduler.table import Ints


def share_budget(remaining: Ints, granule: Ints, budget: int) -> Ints:
    """Chunk lengths [N] for newcomers in order of arrival.

    remaining [N] prompt tokens still to prefill, granule [N] the unit that chunks must be a
    multiple of (``remaining`` is one too). Everyone gets an equal share of ``budget``, what short
    prompts leave over goes to the others. The oldest always advances, even by a granule larger
    than the budget.
    """
    chunks = _fill(remaining, granule, budget)
    if len(chunks) and not chunks[0]:
        chunks[0] = granule[0]
        chunks[1:] = _fill(remaining[1:], granule[1:], max(budget - int(granule[0]), 0))
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
