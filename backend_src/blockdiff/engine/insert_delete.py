"""Insert and delete editing in the engine: what open blocks have been through, and their updates.

Keeps per slot what ``decoding.levenshtein`` asks for beyond the slot table; a slot's memory starts
anew with the first preview of a block. Knows nothing of devices or of how logits are computed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blockdiff.decoding.levenshtein import (
    Canvases,
    Choices,
    Controls,
    Rules,
    Update,
    apply_update,
    choose_update,
    find_origins,
    mask_again,
    places_to_resample,
)
from blockdiff.models.base import ModelInfo
from blockdiff.scheduler import Decisions, SlotTable
from blockdiff.scheduler.arrays import Flags, Floats, Ints
from blockdiff.scheduler.table import DEFAULT_POST_STEPS

# (groups [N], places [N], banned (n, token) pairs [K, 2]) -> best token and log probability [N]
Resample = Callable[[Ints, Ints, Ints], tuple[Ints, Floats]]
NEVER = -1


@dataclass
class BlockMemory:
    """Per slot: original masks, updates without them, and every update's tokens. Grows."""

    is_original: Flags  # [slots, W]
    post_updates: Ints  # [slots]
    seen: npt.NDArray[np.int32]  # [slots, S, W] the canvas before each update
    written: npt.NDArray[np.int32]  # [slots, S, W] the tokens each update wrote, or NEVER

    @classmethod
    def for_slots(cls, slots: int) -> "BlockMemory":
        """Nothing remembered yet."""
        return cls(
            np.zeros((slots, 1), np.bool_),
            np.zeros(slots, np.int64),
            np.zeros((slots, 1, 1), np.int32),
            np.full((slots, 1, 1), NEVER, np.int32),
        )

    def make_room(self, updates: int, width: int) -> None:
        """Hold at least ``updates`` updates of blocks of ``width``."""
        more = max(updates - self.seen.shape[1], 0)
        # a whole block's usual number of updates at once
        more = more and more + width + DEFAULT_POST_STEPS
        wider = max(width - self.seen.shape[2], 0)
        if more or wider:
            room = ((0, 0), (0, more), (0, wider))
            self.is_original = np.pad(self.is_original, ((0, 0), (0, wider)))
            self.seen = np.pad(self.seen, room)
            self.written = np.pad(self.written, room, constant_values=NEVER)


class InsertDelete:
    """Updates the blocks of requests that edit on a model with insert and delete tokens."""

    def __init__(self, info: ModelInfo, num_slots: int) -> None:
        self.controls = Controls(info.mask_token_id, info.delete_token_id, info.split_token_id)
        self._is_offered = info.edits_length
        self._memory = BlockMemory.for_slots(num_slots)

    def edits(self, table: SlotTable, slots: Ints) -> Flags:
        """Which of ``slots`` decide their blocks this way."""
        return table.is_editing[slots] & self._is_offered

    def never(self, is_asked: bool) -> tuple[int, ...]:
        """Control tokens that no row may choose; ``is_asked``: some rows edit this way.

        Their best token is then asked for with the mask barred, and the other control tokens are
        barred for the rows that do not.
        """
        wanted = self.controls[:1] if is_asked else self.controls
        return tuple(token for token in wanted if token >= 0)

    def decide(
        self, table: SlotTable, slots: Ints, choices: Choices, resample: Resample
    ) -> Decisions:
        """One update of the blocks of ``slots`` [G]; ``choices`` [G, B] of their preview."""
        width = choices.tokens.shape[1]
        before, rules = self._recall(table, slots, width)
        update = choose_update(before, choices, rules, self.controls)
        update = self._leave_loops(table, slots, before, update, resample)
        after = apply_update(before, update, rules.block_length, self.controls)
        is_early = self._is_early_eos(table, slots, after)
        after = mask_again(after, is_early, self.controls.mask)
        self._remember(slots, rules, before, update, after)
        origins = None
        if table.is_traced[slots].any():
            origins = find_origins(update, rules.block_length, self.controls)
        return Decisions(
            after.tokens, after.log_probs, after.is_masked, update.is_settled, origins=origins
        )

    def _recall(self, table: SlotTable, slots: Ints, width: int) -> tuple[Canvases, Rules]:
        memory, updates = self._memory, table.step[slots]
        memory.make_room(int(updates.max()) + 1, width)
        fresh = slots[updates == 0]
        memory.is_original[fresh, :width] = table.masked[fresh, :width]
        memory.post_updates[fresh] = 0
        before = Canvases(
            table.canvas[slots, :width],
            table.log_probs[slots, :width],
            table.masked[slots, :width],
            memory.is_original[slots, :width],
        )
        return before, Rules(
            block_length=table.block_length[slots],
            first_response=table.first_response[slots],
            minimum=table.least_accepted[slots],
            threshold=table.threshold[slots],
            editing_threshold=table.editing_threshold[slots],
            max_post_steps=table.max_post_steps[slots],
            updates=updates,
            post_updates=memory.post_updates[slots],
        )

    def _leave_loops(
        self, table: SlotTable, slots: Ints, before: Canvases, update: Update, resample: Resample
    ) -> Update:
        width, memory = before.tokens.shape[1], self._memory
        is_past = np.arange(memory.seen.shape[1]) < table.step[slots, None]
        seen = memory.seen[slots, :, :width].astype(np.int64)
        places = places_to_resample(before, update, table.block_length[slots], seen, is_past)
        groups = np.flatnonzero(places >= 0)
        if not len(groups):
            return update
        places = places[groups]
        # [N, S] what was written there before; an original mask cannot stay one
        history = memory.written[slots[groups], :, places].astype(np.int64)
        history = np.where(is_past[groups], history, NEVER)
        is_original = (before.is_original & before.is_masked)[groups, places]
        mask = np.where(is_original, self.controls.mask, NEVER)
        positions = table.block_start[slots[groups]] + places
        is_early = positions < table.eos_allowed_from[slots[groups]]
        eos = np.where(is_early[:, None], table.eos_ids[slots[groups]], NEVER)
        barred = np.concatenate([history, mask[:, None], eos], axis=1)
        rows, columns = np.nonzero(barred >= 0)
        banned = np.stack([rows, barred[rows, columns]], axis=1)
        tokens, log_probs = update.tokens.copy(), update.log_probs.copy()
        tokens[groups, places], log_probs[groups, places] = resample(groups, places, banned)
        return update._replace(tokens=tokens, log_probs=log_probs)

    def _is_early_eos(self, table: SlotTable, slots: Ints, after: Canvases) -> Flags:
        """End tokens that a deletion has moved to where ``min_tokens`` forbids them."""
        positions = table.block_start[slots, None] + np.arange(after.tokens.shape[1])
        is_early = positions < table.eos_allowed_from[slots, None]
        is_early &= positions >= (table.block_start + table.first_response)[slots, None]
        is_eos = (after.tokens[:, :, None] == table.eos_ids[slots, None, :]).any(axis=2)
        found: Flags = is_early & is_eos & ~after.is_masked
        return found

    def _remember(
        self, slots: Ints, rules: Rules, before: Canvases, update: Update, after: Canvases
    ) -> None:
        memory, width = self._memory, before.tokens.shape[1]
        memory.is_original[slots, :width] = after.is_original
        memory.post_updates[slots] = update.post_updates
        memory.seen[slots, rules.updates, :width] = before.tokens
        written = np.where(update.is_written, update.tokens, NEVER)
        memory.written[slots, rules.updates, :width] = written
