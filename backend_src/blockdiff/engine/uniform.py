"""One round of a model that denoises random canvases: plan in, decisions out.

Keeps what canvases need from step to step; where their random tokens come from is a ``DrawSource``.
Knows nothing of requests or of what the decisions mean for them.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blockdiff.decoding.draws import DrawSource, Places
from blockdiff.decoding.row_sums import log_totals
from blockdiff.decoding.sampling import entropies
from blockdiff.decoding.uniform import (
    Progress,
    Rules,
    accept_below,
    advance,
    find_finished,
    step_temperatures,
)
from blockdiff.engine.forward import SAMPLED_TILE, make_batch
from blockdiff.engine.rounds import Rounds
from blockdiff.engine.row_rules import early_endings
from blockdiff.models.base import ConditionedModel, ModelCaches
from blockdiff.scheduler import NOTHING, Decisions, RoundPlan, SlotTable
from blockdiff.scheduler.arrays import Flags, Floats, Ints
from blockdiff.transfer import Array, fetch, to_device


class UniformRounds:
    """Runs rounds of one model; canvases are as long as the model's blocks."""

    def __init__(self, model: ConditionedModel, num_slots: int, draws: DrawSource) -> None:
        self._model = model
        self._draws = draws
        self._progress = Progress(
            np.zeros((num_slots, model.info.block_length), np.int64), np.zeros(num_slots, np.int64)
        )

    def start_canvas(self, table: SlotTable, slot: int) -> Ints:
        """Ids [B] that the open block of ``slot`` begins with."""
        return self._draws.start(self._places(table, np.array([slot])))

    def run(self, rounds: Rounds, table: SlotTable, plan: RoundPlan) -> Decisions:
        """Forward of ``plan``; caches are written in place, the next step's signals too."""
        model, slots = self._model, plan.group_slots
        caches, statistics = rounds.caches, rounds.statistics
        first_steps = slots[table.step[slots] == 0]
        if len(first_steps):
            model.forget_signals(caches, torch.from_numpy(first_steps).to(model.device))
        hidden, hits = rounds.hidden(make_batch(table, plan))
        if not len(slots):
            return NOTHING
        places = self._places(table, slots)
        rows = self._choose(hidden, places, table, plan, caches)
        # [4, G, B]: most probable ids, drawn ids, log confidences, entropies
        packed, *counts = fetch([rows.view(4, len(slots), -1), *statistics.due(hits)])
        for found in counts:
            statistics.publish(found)
        ids = packed[:2].astype(np.int64)
        fresh = self._draws.fresh(places).reshape(ids[0].shape)
        return self._decide(table, slots, (ids[0], ids[1], fresh), packed[2:].astype(np.float32))

    def _places(self, table: SlotTable, slots: Ints) -> Places:
        """All places of the canvases of ``slots`` [G], laid end to end."""
        width = self._model.info.block_length
        owner = np.repeat(slots, width)
        places = np.tile(np.arange(width), len(slots))
        return Places(
            uids=table.uid[owner],
            seeds=table.seed[owner],
            blocks=table.block_index[owner],
            steps=table.step[owner],
            places=places,
            positions=table.block_start[owner] + places,
        )

    def _choose(
        self,
        hidden: Tensor,
        places: Places,
        table: SlotTable,
        plan: RoundPlan,
        caches: ModelCaches,
    ) -> Tensor:
        """[4, L] float64 of the L rows, a tile of logits at a time; stores the rows' signals."""
        model, count = self._model, hidden.shape[0]
        assert count == len(places.places), "a preview decides its whole canvas"
        arrays = _row_arrays(table, places, plan)
        device = to_device(arrays, model.device)
        sample = self._draws.sampler(places, model.device)
        size = max(SAMPLED_TILE // model.info.vocab_size, 1)
        tiles = []
        for start in range(0, count, size):
            rows = slice(start, min(start + size, count))
            logits = model.head(hidden[rows])
            log_total = log_totals(logits)
            ends = np.searchsorted(arrays["banned_rows"], [rows.start, rows.stop]).tolist()
            banned = (
                device["banned_rows"][slice(*ends)] - start,
                device["banned_ids"][slice(*ends)],
            )
            logits[banned] = -torch.inf
            best, best_ids = logits.max(dim=1)
            scaled = logits.div_(device["temperature"][rows, None])
            parts = (best_ids, sample(scaled, rows), best - log_total, entropies(scaled))
            tiles.append(torch.stack([part.double() for part in parts]))
            where = (device["slots"][rows], device["places"][rows])
            model.store_signals(caches, model.expect(scaled), *where)
        return torch.cat(tiles, dim=1)

    def _decide(
        self,
        table: SlotTable,
        slots: Ints,
        ids: tuple[Ints, Ints, Ints],
        measures: npt.NDArray[np.float32],
    ) -> Decisions:
        best, drawn, fresh = ids
        log_probs, entropy = measures
        step, width = table.step[slots], best.shape[1]
        # Rows of pinned places are computed for the next step's signals only.
        is_pinned, given = table.pinned[slots, :width], table.canvas[slots, :width]
        best = np.where(is_pinned, given, best)
        last = Progress(self._progress.best[slots], self._progress.repeats[slots])
        progress = advance(last, step, best)
        self._progress.best[slots], self._progress.repeats[slots] = progress
        accepted, finished = decide_step(table, slots, progress, entropy)
        canvas = np.where(accepted, drawn, fresh)
        return Decisions(
            canvas=np.where(finished[:, None] | is_pinned, best, canvas),
            log_probs=np.where(is_pinned, np.float32(0), log_probs),
            is_open=~finished[:, None] & ~is_pinned,
            is_settled=np.ones(len(slots), np.bool_),
        )


def _row_arrays(table: SlotTable, places: Places, plan: RoundPlan) -> dict[str, Array]:
    """What the rows of the canvases need besides their logits."""
    slots = plan.group_slots[plan.row_groups]
    left = (table.step[slots], table.schedule_steps[slots])
    banned_rows, banned_ids = early_endings(table, slots, places.positions)
    return {
        "slots": slots,
        "places": plan.row_places,
        "temperature": step_temperatures(*left, table.t_min[slots], table.t_max[slots]),
        "banned_rows": banned_rows,
        "banned_ids": banned_ids,
    }


def decide_step(
    table: SlotTable, slots: Ints, progress: Progress, entropy: Floats
) -> tuple[Flags, Flags]:
    """Accepted places [G, B] and finished canvases [G] of the step that ``slots`` are at."""
    is_pinned = table.pinned[slots, : entropy.shape[1]]
    rules = Rules(
        steps=table.schedule_steps[slots],
        stability=table.stability_threshold[slots],
        confidence=table.confidence_threshold[slots],
    )
    accepted = accept_below(entropy, table.threshold[slots], is_pinned)
    return accepted, find_finished(progress, table.step[slots], entropy, rules, is_pinned)
