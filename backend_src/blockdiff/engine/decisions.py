"""What accepted tokens make of the open blocks, on the host.

Knows the slot table and acceptance flags; knows nothing of devices or of how acceptance is chosen.
"""

import numpy as np

from blockdiff.scheduler import Decisions, SlotTable
from blockdiff.scheduler.table import Flags, Floats, Ints


def write_accepted(
    table: SlotTable, slots: Ints, tokens: Ints, log_probs: Floats, accepted: Flags
) -> Decisions:
    """Blocks of ``slots`` [G] with ``tokens`` [G, B] where ``accepted`` [G, B], else as they were.

    A block that edits tokens is settled when a preview changes nothing, or when its extra previews
    are used up; any other block has no token that may change later.
    """
    width = tokens.shape[1]
    was_open = table.masked[slots, :width]
    is_open = was_open & ~accepted
    has_open = is_open.any(axis=1)
    is_confirmed = ~was_open.any(axis=1) & ~accepted.any(axis=1)
    is_over = table.post_steps[slots] + ~has_open > table.max_post_steps[slots]
    return Decisions(
        canvas=np.where(accepted, tokens, table.canvas[slots, :width]),
        log_probs=np.where(accepted, log_probs, table.log_probs[slots, :width]),
        is_open=is_open,
        is_settled=~table.is_editing[slots] | is_confirmed | is_over,
    )


def overwrite(decisions: Decisions, groups: Ints, others: Decisions) -> None:
    """Put ``others``, of ``groups`` [N] alone, in these groups' lines of ``decisions``."""
    for mine, theirs in (
        (decisions.canvas, others.canvas),
        (decisions.log_probs, others.log_probs),
        (decisions.is_open, others.is_open),
        (decisions.is_settled, others.is_settled),
    ):
        mine[groups] = theirs
