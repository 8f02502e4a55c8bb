"""One round of a model that denoises random canvases: plan in, decisions out.

Keeps what canvases need from step to step; where their random tokens come from is a ``DrawSource``.
Knows nothing of requests or of what the decisions mean for them.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blockdiff.decoding.draws import DrawSource, Places
from blockdiff.decoding.sampling import entropies
from blockdiff.decoding.uniform import (
    Progress,
    Rules,
    accept_below,
    advance,
    find_finished,
    step_temperatures,
)
from blockdiff.engine.forward import SAMPLED_TILE, banned_tokens, batch_arrays, to_device
from blockdiff.models.base import ConditionedModel, ModelCaches, RoundBatch
from blockdiff.scheduler import NOTHING, Decisions, RoundPlan, SlotTable
from blockdiff.scheduler.table import Flags, Floats, Ints


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

    def run(self, caches: ModelCaches, table: SlotTable, plan: RoundPlan) -> Decisions:
        """Forward of ``plan``; ``caches`` are written in place, the next step's signals too."""
        model, slots = self._model, plan.group_slots
        first_steps = slots[table.step[slots] == 0]
        if len(first_steps):
            model.forget_signals(caches, torch.from_numpy(first_steps).to(model.device))
        arrays = batch_arrays(table, plan)
        device = to_device(arrays, model.device)
        hidden = model.hidden(RoundBatch(**{name: device[name] for name in arrays}), caches)
        if not len(slots):
            return NOTHING
        places = self._places(table, slots)
        rows = self._choose(hidden, places, table, plan, caches)
        # [4, G, B]: most probable ids, drawn ids, log confidences, entropies
        packed = rows.cpu().numpy().reshape(4, len(slots), -1)
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
        model = self._model
        slots = plan.group_slots[plan.row_groups]
        count = len(slots)
        assert count == len(places.places) == hidden.shape[0], "a preview decides its whole canvas"
        banned_rows, banned_ids = banned_tokens(table, slots, places.positions)
        rules = (table.step[slots], table.schedule_steps[slots])
        temperature = step_temperatures(*rules, table.t_min[slots], table.t_max[slots])
        moved = to_device(
            {
                "temperature": temperature,
                "slots": slots,
                "places": plan.row_places,
                "banned_rows": banned_rows,
                "banned_ids": banned_ids,
            },
            model.device,
        )
        sample = self._draws.sampler(places, model.device)
        size = max(SAMPLED_TILE // model.info.vocab_size, 1)
        tiles = []
        for start in range(0, count, size):
            rows = slice(start, min(start + size, count))
            logits = model.head(hidden[rows])
            log_total = torch.logsumexp(logits, dim=1)
            banned = slice(*np.searchsorted(banned_rows, [rows.start, rows.stop]).tolist())
            logits[moved["banned_rows"][banned] - start, moved["banned_ids"][banned]] = -torch.inf
            best, best_ids = logits.max(dim=1)
            scaled = logits / moved["temperature"][rows, None]
            drawn, spread = sample(scaled, rows), entropies(scaled)
            model.store_signals(
                caches, model.expect(scaled), moved["slots"][rows], moved["places"][rows]
            )
            parts = (best_ids, drawn, best - log_total, spread)
            tiles.append(torch.stack([part.double() for part in parts]))
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
        step = table.step[slots]
        last = Progress(self._progress.best[slots], self._progress.repeats[slots])
        progress = advance(last, step, best)
        self._progress.best[slots], self._progress.repeats[slots] = progress
        accepted, finished = decide_step(table, slots, progress, entropy)
        canvas = np.where(accepted, drawn, fresh)
        return Decisions(
            canvas=np.where(finished[:, None], best, canvas),
            log_probs=log_probs,
            is_open=np.repeat(~finished[:, None], best.shape[1], axis=1),
            is_settled=np.ones(len(slots), np.bool_),
        )


def decide_step(
    table: SlotTable, slots: Ints, progress: Progress, entropy: Floats
) -> tuple[Flags, Flags]:
    """Accepted places [G, B] and finished canvases [G] of the step that ``slots`` are at."""
    rules = Rules(
        steps=table.schedule_steps[slots],
        stability=table.stability_threshold[slots],
        confidence=table.confidence_threshold[slots],
    )
    accepted = accept_below(entropy, table.threshold[slots])
    return accepted, find_finished(progress, table.step[slots], entropy, rules)
