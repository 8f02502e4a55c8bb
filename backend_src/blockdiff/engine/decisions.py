"""What chosen tokens make of the open blocks, on the host: which are accepted, what that writes.

Knows the slot table and the plan; knows nothing of devices or of how tokens are chosen.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blockdiff.decoding.acceptance import accept, accept_by, find_edits, scheduled_minimum
from blockdiff.scheduler import Decisions, RoundPlan, SlotTable
from blockdiff.scheduler.table import Flags, Floats, Ints


class Chosen(NamedTuple):
    """What a preview says of each decided row, [L] each."""

    tokens: Ints
    log_probs: Floats
    entropy: Floats | None
    """In nats; None where no block is decided by it."""


def decide(table: SlotTable, plan: RoundPlan, chosen: Chosen) -> Decisions:
    """The open blocks of the plan's groups with those of the ``chosen`` tokens that are accepted.

    A block that edits tokens is settled when a preview changes nothing, or when its extra previews
    are used up; any other block has no token that may change later.
    """
    slots = plan.group_slots
    tokens, log_probs = spread(table, plan, chosen.tokens), spread(table, plan, chosen.log_probs)
    width = tokens.shape[1]
    canvas, was_open = table.canvas[slots, :width], table.masked[slots, :width]
    is_decided = spread(table, plan, np.ones(len(chosen.tokens), np.bool_))
    # What is not a number comes first, so that its request fails at once.
    confidence = np.where(np.isnan(log_probs), np.inf, np.exp(log_probs, dtype=np.float64))
    measures = (confidence.astype(np.float32), chosen.entropy)
    accepted = _accept(table, plan, measures, is_decided & was_open)
    is_editing = table.is_editing[slots]
    if is_editing.any():
        is_editable = is_decided & ~was_open
        limit = table.editing_threshold[slots]
        accepted |= find_edits(measures[0], tokens != canvas, is_editable, limit)
    is_open = was_open & ~accepted
    is_settled = ~is_editing
    if is_editing.any():
        is_settled |= _is_settled(table, slots, was_open, is_open, accepted)
    return Decisions(
        canvas=np.where(accepted, tokens, canvas),
        log_probs=np.where(accepted, log_probs, table.log_probs[slots, :width]),
        is_open=is_open,
        is_settled=is_settled,
    )


def spread(table: SlotTable, plan: RoundPlan, rows: npt.NDArray[np.generic]) -> npt.NDArray:
    """Values of the decided rows [L] at their places [G, B]; zero elsewhere."""
    width = int(table.block_length[plan.group_slots].max())
    grid = np.zeros((len(plan.group_slots), width), rows.dtype)
    grid[plan.row_groups, plan.row_places] = rows
    return grid


def _accept(
    table: SlotTable, plan: RoundPlan, measures: tuple[Floats, Floats | None], is_open: Flags
) -> Flags:
    """Accepted places [G, B]; the single row of an autoregressive group always is."""
    slots, (confidence, entropy) = plan.group_slots, measures
    minimum = scheduled_minimum(
        table.block_length[slots], table.schedule_steps[slots], table.step[slots]
    )
    minimum = np.maximum(minimum, table.least_accepted[slots])
    algorithm, limit = table.algorithm[slots], table.threshold[slots]
    if not algorithm.any():
        return accept(confidence, is_open, minimum, limit)
    spreads = np.zeros_like(confidence) if entropy is None else spread(table, plan, entropy)
    return accept_by(algorithm, confidence, spreads, is_open, minimum, limit)


def _is_settled(
    table: SlotTable, slots: Ints, was_open: Flags, is_open: Flags, accepted: Flags
) -> Flags:
    is_confirmed = ~was_open.any(axis=1) & ~accepted.any(axis=1)
    post_steps = table.post_steps[slots] + ~is_open.any(axis=1)
    is_over: Flags = post_steps > table.max_post_steps[slots]
    return is_confirmed | is_over


def overwrite(decisions: Decisions, groups: Ints, others: Decisions) -> None:
    """Put ``others``, of ``groups`` [N] alone, in these groups' lines of ``decisions``."""
    for mine, theirs in (
        (decisions.canvas, others.canvas),
        (decisions.log_probs, others.log_probs),
        (decisions.is_open, others.is_open),
        (decisions.is_settled, others.is_settled),
    ):
        mine[groups] = theirs
