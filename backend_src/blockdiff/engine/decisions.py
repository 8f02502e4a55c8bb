"""What chosen tokens make of the open blocks, on the host: which are accepted, what that writes.

Knows the slot table and the plan; knows nothing of devices or of how tokens are chosen.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blockdiff.decoding.acceptance import accept, accept_by, find_edits, scheduled_minimum
from blockdiff.scheduler import Decisions, RoundPlan, SlotTable
from blockdiff.scheduler.arrays import NO_TOKEN, Flags, Floats, Ints
from blockdiff.scheduler.decisions import Guesses


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
    width = block_width(table, plan)
    tokens, log_probs = spread(plan, chosen.tokens, width), spread(plan, chosen.log_probs, width)
    canvas, was_open = table.canvas[slots, :width], table.masked[slots, :width]
    confidence = np.exp(log_probs)
    if np.isnan(chosen.log_probs).any():
        # What is not a number comes first, so that its request fails at once.
        confidence = np.where(np.isnan(log_probs), np.float32(np.inf), confidence)
    is_editing, is_decided = table.is_editing[slots], was_open
    if is_editing.any() or table.is_autoregressive[slots].any():
        is_decided = spread(plan, np.ones(len(chosen.tokens), np.bool_), width)
    accepted = _accept(table, plan, (confidence, chosen.entropy), is_decided & was_open)
    if is_editing.any():
        is_editable, limit = is_decided & ~was_open, table.editing_threshold[slots]
        accepted |= find_edits(confidence, tokens != canvas, is_editable, limit)
    is_open = was_open & ~accepted
    is_settled = ~is_editing
    if is_editing.any():
        is_settled |= _is_settled(table, slots, was_open, is_open, accepted)
    guesses = None
    if table.wants_canvases[slots].any():
        is_seen = spread(plan, np.ones(len(chosen.tokens), np.bool_), width)
        guesses = Guesses(np.where(is_seen, tokens, NO_TOKEN), log_probs)
    return Decisions(
        canvas=np.where(accepted, tokens, canvas),
        log_probs=np.where(accepted, log_probs, table.log_probs[slots, :width]),
        is_open=is_open,
        is_settled=is_settled,
        guesses=guesses,
    )


def block_width(table: SlotTable, plan: RoundPlan) -> int:
    """B, the longest block of the plan's groups."""
    return int(table.block_length[plan.group_slots].max())


def spread(plan: RoundPlan, rows: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """Values of the decided rows [L] at their places [G, B] of ``width`` B; zero elsewhere."""
    grid = np.zeros((len(plan.group_slots), width), rows.dtype)
    grid[plan.row_groups, plan.row_places] = rows
    return grid


def _accept(
    table: SlotTable, plan: RoundPlan, measures: tuple[Floats, Floats | None], is_open: Flags
) -> Flags:
    """Accepted places [G, B]; the single row of an autoregressive group always is."""
    slots, (confidence, entropy) = plan.group_slots, measures
    minimum = least_accepted(table, slots)
    is_first: Flags = is_open & _first_open(table, slots, is_open.shape[1])
    # What a constraint leaves of the first open place is taken in any case.
    minimum = np.maximum(minimum - is_first.any(axis=1), 0)
    algorithm, limit = table.algorithm[slots], table.threshold[slots]
    if not algorithm.any():
        return accept(confidence, is_open, minimum, limit) | is_first
    spreads = np.zeros_like(confidence)
    if entropy is not None:
        spreads = spread(plan, entropy, confidence.shape[1])
        # As above: below every entropy, and finite, so that sums stay numbers.
        spreads = np.where(np.isposinf(confidence), np.float32(-1e30), spreads)
    return accept_by(algorithm, confidence, spreads, is_open, minimum, limit) | is_first


def _first_open(table: SlotTable, slots: Ints, width: int) -> Flags:
    """Places [G, B] right after what is certified of constrained blocks."""
    place = np.where(table.is_constrained, table.certified - table.block_start, -1)[slots]
    found: Flags = np.arange(width) == place[:, None]
    return found


def least_accepted(table: SlotTable, slots: Ints) -> Ints:
    """Places [G] that the previews of the open blocks of ``slots`` [G] accept at least."""
    minimum, steps = table.least_accepted[slots], table.schedule_steps[slots]
    if steps.any():
        # A schedule shares out what the block has to decide.
        shared = table.block_length[slots] - table.pinned[slots].sum(axis=1)
        minimum = np.maximum(minimum, scheduled_minimum(shared, steps, table.step[slots]))
    return minimum


def _is_settled(
    table: SlotTable, slots: Ints, was_open: Flags, is_open: Flags, accepted: Flags
) -> Flags:
    is_confirmed = ~was_open.any(axis=1) & ~accepted.any(axis=1)
    post_steps = table.post_steps[slots] + ~is_open.any(axis=1)
    is_over: Flags = post_steps > table.max_post_steps[slots]
    return is_confirmed | is_over


def overwrite(decisions: Decisions, groups: Ints, others: Decisions) -> Decisions:
    """``decisions``, written over, with ``others``, of ``groups`` [N] alone, in their lines."""
    for mine, theirs in (
        (decisions.canvas, others.canvas),
        (decisions.log_probs, others.log_probs),
        (decisions.is_open, others.is_open),
        (decisions.is_settled, others.is_settled),
    ):
        mine[groups] = theirs
    if decisions.guesses is not None:
        # their places have moved
        decisions.guesses.tokens[groups] = NO_TOKEN
    if others.origins is None:
        return decisions
    origins = np.tile(np.arange(decisions.canvas.shape[1]), (len(decisions.canvas), 1))
    origins[groups] = others.origins
    return replace(decisions, origins=origins)
