"""One round of a model that denoises random canvases: plan in, decisions out.

Keeps what canvases need from step to step; where their random tokens come from is a ``DrawSource``.
Knows nothing of requests or of what the decisions mean for them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blockdiff.decoding.adjust import adjust
from blockdiff.decoding.draws import DrawSource, Places
from blockdiff.decoding.row_sums import log_totals
from blockdiff.decoding.sampling import bar_unset, entropies, top_tokens
from blockdiff.decoding.uniform import (
    Progress,
    Rules,
    accept_below,
    advance,
    find_finished,
)
from blockdiff.engine.canvas_rules import CanvasRules, make_canvas_rules
from blockdiff.engine.device_blocks import read_decisions
from blockdiff.engine.device_canvases import DeviceCanvases, canvas_arrays
from blockdiff.engine.forward import SAMPLED_TILE, make_batch, with_top
from blockdiff.engine.fused_choice import usable_head
from blockdiff.engine.rounds import Rounds
from blockdiff.engine.row_rules import as_words, banned_ids
from blockdiff.models.base import ConditionedModel, ModelCaches, OutputHead
from blockdiff.scheduler import NOTHING, Certifier, Decisions, RoundPlan, SlotTable
from blockdiff.scheduler.arrays import Flags, Floats, Ints
from blockdiff.transfer import fetch, to_device
from blockdiff_kernels import head as heads
from blockdiff_kernels.denoise import Step
from blockdiff_kernels.head.drawing import keep_probable
from blockdiff_kernels.implementation import TRITON, choose


class Chosen(NamedTuple):
    """``Step`` on the host, [G, B] each."""

    best: Ints
    drawn: Ints
    log_probs: Floats
    entropy: Floats


class UniformRounds:
    """Runs rounds of one model; canvases are as long as the model's blocks."""

    def __init__(self, model: ConditionedModel, num_slots: int, draws: DrawSource) -> None:
        self._model = model
        self._draws = draws
        shape = (num_slots, model.info.block_length)
        self._progress = Progress(np.zeros(shape, np.int64), np.zeros(num_slots, np.int64))
        self._device_canvases = DeviceCanvases(*shape, model.device)

    def start_canvas(self, table: SlotTable, slot: int) -> Ints:
        """Ids [B] that the open block of ``slot`` begins with."""
        return self._draws.start(self._places(table, np.array([slot])))

    def run(
        self, rounds: Rounds, table: SlotTable, plan: RoundPlan, certifier: Certifier
    ) -> Decisions:
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
        rules = make_canvas_rules(table, plan, places, certifier.masks(plan))
        fresh = self._draws.fresh(places).reshape(len(slots), -1)
        own = (table, plan, places)
        packed = self._replayed(rounds, hidden, rules, own, fresh)
        wanted: Sequence[Tensor] = [] if packed is None else [packed]
        top: list[Tensor] = []
        if packed is None:
            step, top = self._choose(hidden, places, rules, caches)
            canvases = self._canvases(rounds, hidden.device)
            wanted = step if canvases is None else [canvases.renew(table, slots, step, fresh)]
        counts = statistics.due(hits)
        found = fetch([*wanted, *top, *counts])
        if counts:
            statistics.publish(found.pop())
        tops = [found.pop() for _ in top][::-1]
        if not isinstance(wanted, Step):
            decisions = read_decisions(found[0], fresh.shape[1])
        else:
            said = Chosen(*(line.reshape(fresh.shape) for line in found))
            decisions = self._decide(table, slots, said, fresh)
        return decisions if rules.top is None else with_top(decisions, plan, rules.top, tops)

    def _canvases(self, rounds: Rounds, device: torch.device) -> DeviceCanvases | None:
        """What decides on the device and keeps progress there; None: the host does."""
        if rounds.canvases is not None:
            return rounds.canvases
        return self._device_canvases if choose("denoise", device) is TRITON else None

    def _replayed(
        self,
        rounds: Rounds,
        hidden: Tensor,
        rules: CanvasRules,
        where: tuple[SlotTable, RoundPlan, Places],
        fresh: Ints,
    ) -> Tensor | None:
        """The canvases after this step by a captured one, which stores signals; None: by none."""
        table, plan, places = where
        keys = None if rounds.canvases is None else self._draws.keys(places)
        if keys is None or rules.needs_logits:
            return None
        rows = _by_row(rules, keys)
        return rounds.renew(hidden, rows, canvas_arrays(table, plan.group_slots, fresh))

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
        self, hidden: Tensor, places: Places, rules: CanvasRules, caches: ModelCaches
    ) -> tuple[Step, list[Tensor]]:
        """What the L rows say, and the most probable tokens of those that want them; stores the
        signals that they give the next step."""
        model, count = self._model, hidden.shape[0]
        assert count == len(places.places), "a preview decides its whole canvas"
        keys, head = self._draws.keys(places), usable_head(model.output_head, hidden)
        if head is not None and keys is not None and not rules.needs_logits:
            return self._choose_at_once(hidden, head, _by_row(rules, keys), caches), []
        device = to_device(rules.arrays, model.device)
        sample = self._draws.sampler(places, model.device)
        size = max(SAMPLED_TILE // model.info.vocab_size, 1)
        tiles, tops = [], []
        for start in range(0, count, size):
            rows = slice(start, min(start + size, count))
            logits = model.head(hidden[rows])
            if rules.changes is not None:
                adjust(logits, rules.changes.tile(rows, model.device))
            if rules.top is not None:
                own = torch.from_numpy(rules.top.within(rows.start, rows.stop)).to(model.device)
                tops.append(top_tokens(logits[own], rules.top.most))
            log_total = log_totals(logits)
            logits[rules.banned(rows, device)] = -torch.inf
            if rules.masks is not None:
                marked, words = rules.masks.within(rows.start, rows.stop)
                own_masks = to_device({"rows": marked, "words": words}, model.device)
                bar_unset(logits, own_masks["rows"], own_masks["words"])
            best, best_ids = logits.max(dim=1)
            scaled = logits.div_(device["temperature"][rows, None])
            kept = keep_probable(scaled, device["min_p"][rows]) if rules.has_least else scaled
            tiles.append((best_ids, sample(kept, rows), best - log_total, entropies(scaled)))
            where = (device["slots"][rows], device["places"][rows])
            model.store_signals(caches, model.expect(scaled), *where)
        step = Step(*(torch.cat(parts) for parts in zip(*tiles, strict=True)))
        return step, [torch.cat(parts) for parts in zip(*tops, strict=True)]

    def _choose_at_once(
        self,
        hidden: Tensor,
        head: OutputHead,
        arrays: dict[str, npt.NDArray[Any]],
        caches: ModelCaches,
    ) -> Step:
        """``_choose`` by kernels that keep no logits."""
        moved = to_device(arrays, hidden.device)
        draws = heads.RowDraws(moved["temperature"], moved["keys"])
        rules = heads.Rules(moved["banned"], draws, heads.Entropy.SCALED)
        found = heads.choose(hidden, *head, rules)
        assert found.entropy is not None and found.peaks is not None, "asked for"
        signals = self._model.expect_rows(hidden, rules, found.peaks)
        self._model.store_signals(caches, signals, moved["slots"], moved["places"])
        return Step(found.best, found.tokens, found.best_log_probs, found.entropy)

    def _decide(
        self,
        table: SlotTable,
        slots: Ints,
        said: Chosen,
        fresh: Ints,
    ) -> Decisions:
        best, drawn, log_probs, entropy = said
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


def _by_row(rules: CanvasRules, keys: Ints) -> dict[str, npt.NDArray[Any]]:
    """Arrays of ``rules`` as kernels read them: bans a line [L, W] each, keys [L, 2] in words."""
    arrays = dict(rules.arrays)
    pairs = (arrays.pop("banned_rows"), arrays.pop("banned_ids"))
    return arrays | {"banned": banned_ids((), pairs, len(keys)), "keys": as_words(keys)}


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
