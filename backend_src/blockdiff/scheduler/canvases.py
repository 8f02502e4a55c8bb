"""Open blocks as requests that watch them see them, after every preview.

Knows the slot table; knows nothing of why a block ends or of who looks.
"""

from dataclasses import replace

import numpy as np

from blockdiff.core import BlockResult, Canvas, PlaceState
from blockdiff.scheduler.arrays import NO_TOKEN, Flags, Ints
from blockdiff.scheduler.decisions import Decisions, Guesses
from blockdiff.scheduler.table import SlotTable


def watched_canvases(
    table: SlotTable, slots: Ints, decisions: Decisions, may_change: Flags
) -> list[BlockResult]:
    """Open blocks of those of ``slots`` [G] whose requests watch, with ``decisions`` written.

    ``may_change`` [G, B]: places whose tokens are not settled.
    """
    watched = np.flatnonzero(table.wants_canvases[slots])
    if not len(watched):
        return []
    width = decisions.canvas.shape[1]
    # as the table has them: places that were decided may have been opened again
    is_masked = table.masked[slots, :width] & (not table.has_random_canvases)
    tokens, log_probs = table.canvas[slots, :width], table.log_probs[slots, :width]
    guesses = decisions.guesses or Guesses(np.full_like(tokens, NO_TOKEN), log_probs)
    tokens = np.where(is_masked, guesses.tokens, tokens)
    log_probs = np.where(is_masked, guesses.log_probs, log_probs)
    states = np.where(may_change[:, :width], PlaceState.OPEN, PlaceState.SETTLED)
    states[is_masked] = PlaceState.MASKED
    ends = np.minimum(table.block_length, table.end_position - table.block_start)[slots]
    results = []
    for group in watched.tolist():
        slot, end = int(slots[group]), int(ends[group])
        first = int(table.first_response[slot])
        index, prompt_length = int(table.block_index[slot]), int(table.prompt_length[slot])
        canvas = Canvas(
            step=int(table.step[slot]) - 1,
            first_place=int(table.block_start[slot]) + first - prompt_length,
            token_ids=tuple(tokens[group, first:end].tolist()),
            log_probs=tuple(log_probs[group, first:end].tolist()),
            states=tuple(map(PlaceState, states[group, first:end].tolist())),
        )
        alone = BlockResult(int(table.uid[slot]), index, (), (), 0, prompt_length)
        results.append(replace(alone, canvas=canvas, is_partial=True))
    return results


def with_canvases(partial: list[BlockResult], results: list[BlockResult]) -> list[BlockResult]:
    """``results`` of a round with its canvases: a block has its own, others come as they are."""
    canvases = {result.request_uid: result.canvas for result in partial}
    blocks = {result.request_uid for result in results}
    waiting = [result for result in partial if result.request_uid not in blocks]
    return waiting + [
        replace(result, canvas=None if result.error else canvases.get(result.request_uid))
        for result in results
    ]
