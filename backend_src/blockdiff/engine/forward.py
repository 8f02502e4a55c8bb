"""One round on the device: plan in, decisions out, one copy each way.

Knows nothing of requests or of what the decisions mean for them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blockdiff.decoding.acceptance import (
    ENTROPY_BOUNDED,
    accept,
    accept_by,
    find_edits,
    scheduled_minimum,
)
from blockdiff.decoding.alternatives import best_unbanned, choose_alternatives
from blockdiff.decoding.levenshtein import Choices, Controls
from blockdiff.decoding.sampling import RowSampling, choose_tokens, entropies, noise_keys
from blockdiff.engine.decisions import overwrite, write_accepted
from blockdiff.engine.insert_delete import InsertDelete, Resample
from blockdiff.engine.statistics import ExpertStatistics
from blockdiff.models.base import BlockDiffusionModel, ModelCaches, RoundBatch
from blockdiff.models.expert_hits import ExpertHits
from blockdiff.scheduler import NOTHING, Decisions, RoundPlan, SlotTable
from blockdiff.transfer import Array, fetch, to_device

# Logits that exist at one time: rows times vocabulary. Noise needs several int64 copies of it.
GREEDY_TILE = 1 << 24
SAMPLED_TILE = 1 << 22


class _Wanted(NamedTuple):
    """What this round needs to know of its rows beyond the best token."""

    entropy: bool
    alternatives: Controls | None


def run_round(
    model: BlockDiffusionModel,
    caches: ModelCaches,
    table: SlotTable,
    plan: RoundPlan,
    insert_delete: InsertDelete,
    statistics: ExpertStatistics,
) -> Decisions:
    """Forward of ``plan``; ``caches`` are written in place by its prefills and commits."""
    edited = np.flatnonzero(insert_delete.edits(table, plan.group_slots))
    rows = _row_arrays(table, plan, insert_delete)
    groups = _group_arrays(table, plan)
    device = to_device({**rows, **groups}, model.device)
    hits = statistics.next_round(len(plan.token_ids))
    hidden = run_hidden(model, make_batch(table, plan), caches, hits)
    if not len(plan.group_slots):
        return NOTHING
    wanted = _Wanted(
        entropy=bool((groups["algorithm"] == ENTROPY_BOUNDED).any()),
        alternatives=insert_delete.controls if len(edited) else None,
    )
    chosen = _choose(model, hidden, device, rows, wanted)
    packed, *counts = fetch([_decide(chosen, plan, table, device), *statistics.due(hits)])
    for found in counts:
        statistics.publish(found)
    decided = (packed[0].astype(np.int64), packed[1].astype(np.float32), packed[2] > 0)
    decisions = write_accepted(table, plan.group_slots, *decided)
    if len(edited):
        resample = _resampler(model, hidden, plan, edited)
        choices = _choices(packed[:, edited])
        update = insert_delete.decide(table, plan.group_slots[edited], choices, resample)
        overwrite(decisions, edited, update)
    return decisions


def run_hidden(
    model: BlockDiffusionModel, batch: RoundBatch, caches: ModelCaches, hits: ExpertHits | None
) -> Tensor:
    """``model.hidden``; only models that have experts need to know of ``hits``."""
    if hits is None:
        return model.hidden(batch, caches)
    return model.hidden(batch, caches, hits=hits)


def make_batch(table: SlotTable, plan: RoundPlan) -> RoundBatch:
    """The rows of ``plan``."""
    return RoundBatch(
        token_ids=plan.token_ids,
        positions=plan.positions,
        segment_starts=plan.segment_starts,
        phases=plan.phases,
        slots=plan.slots,
        contexts=plan.contexts,
        logit_rows=plan.logit_rows,
        block_lengths=table.full_length[plan.slots],
    )


def _row_arrays(table: SlotTable, plan: RoundPlan, insert_delete: InsertDelete) -> dict[str, Array]:
    """What token choice needs, per decided row."""
    slots = plan.group_slots[plan.row_groups]
    positions = plan.positions[plan.logit_rows]
    # An autoregressive row decides the position after its own.
    positions = np.where(
        table.is_autoregressive[slots], table.block_start[slots] + plan.row_places, positions
    )
    sampled = np.flatnonzero(table.temperature[slots] > 0)
    chosen = slots[sampled]
    barred = insert_delete.barred_tokens(table, slots)
    banned_rows, banned_ids = banned_tokens(table, slots, positions, barred)
    return {
        "banned_rows": banned_rows,
        "banned_ids": banned_ids,
        "sampled_rows": sampled,
        "temperature": table.temperature[chosen],
        "top_k": table.top_k[chosen],
        "top_p": table.top_p[chosen],
        "keys": noise_keys(table.seed[chosen], positions[sampled], table.step[chosen]),
    }


def banned_tokens(
    table: SlotTable,
    slots: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    barred: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(row, token) pairs that may not be chosen: ``barred`` ids [L, C] (-1: none), and EOS where it
    is too early."""
    every, kinds = np.nonzero(barred >= 0)
    early = np.flatnonzero(positions < table.eos_allowed_from[slots])
    eos = table.eos_ids[slots[early]]
    rows, columns = np.nonzero(eos >= 0)
    banned_rows = np.concatenate([every, early[rows]])
    banned_ids = np.concatenate([barred[every, kinds], eos[rows, columns]])
    order = np.argsort(banned_rows, kind="stable")
    return banned_rows[order], banned_ids[order]


def _group_arrays(table: SlotTable, plan: RoundPlan) -> dict[str, Array]:
    """What acceptance needs, per group. An autoregressive group always accepts its one row."""
    slots = plan.group_slots
    # A schedule shares out what the block has to decide.
    shared = table.block_length[slots] - table.pinned[slots].sum(axis=1)
    minimum = scheduled_minimum(shared, table.schedule_steps[slots], table.step[slots])
    needed = {
        "row_groups": plan.row_groups,
        "row_places": plan.row_places,
        "minimum": np.maximum(minimum, table.least_accepted[slots]),
        "threshold": table.threshold[slots],
        "algorithm": table.algorithm[slots],
    }
    if table.is_editing[slots].any():
        width = int(table.block_length[slots].max())
        needed["canvas"] = table.canvas[slots, :width]
        needed["masked"] = table.masked[slots, :width]
        needed["editing_threshold"] = table.editing_threshold[slots]
    return needed


def _choose(
    model: BlockDiffusionModel,
    hidden: Tensor,
    device: Mapping[str, Tensor],
    rows: Mapping[str, Array],
    wanted: _Wanted,
) -> Tensor:
    """[3, L] float64: token id, log confidence and entropy (0 if not wanted) per decided row.

    Where wanted, four more lines: ids and log probabilities of the best token, masks included, and
    of the best that is no control token. Works on a tile of logits at a time; ids are exact in
    float64.
    """
    is_sampled = bool(rows["sampled_rows"].size)
    size = (SAMPLED_TILE if is_sampled else GREEDY_TILE) // model.info.vocab_size
    count, lines = len(hidden), 3 if wanted.alternatives is None else 7
    tiles = []
    for start in range(0, count, max(size, 1)):
        end = min(start + max(size, 1), count)
        logits = model.head(hidden[start:end])
        spread = entropies(logits) if wanted.entropy else logits.new_zeros(len(logits))
        sampling = _tile(device, rows, start, end)
        if wanted.alternatives is None:
            tokens, log_confidence = choose_tokens(logits, sampling)
            found = [tokens, log_confidence, spread]
        else:
            first, second, *others = choose_alternatives(logits, sampling, wanted.alternatives)
            found = [first, second, spread, *others]
        tiles.append(torch.stack([line.double() for line in found]))
    if not tiles:
        return torch.zeros((lines, 0), dtype=torch.float64, device=hidden.device)
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles, dim=1)


def _tile(
    device: Mapping[str, Tensor], rows: Mapping[str, Array], start: int, end: int
) -> RowSampling:
    banned = slice(*np.searchsorted(rows["banned_rows"], [start, end]).tolist())
    sampled = slice(*np.searchsorted(rows["sampled_rows"], [start, end]).tolist())
    has_filters = (rows["top_k"][sampled] > 0) | (rows["top_p"][sampled] < 1)  # type: ignore[operator]
    return RowSampling(
        banned_rows=device["banned_rows"][banned] - start,
        banned_ids=device["banned_ids"][banned],
        sampled_rows=device["sampled_rows"][sampled] - start,
        temperature=device["temperature"][sampled],
        top_k=device["top_k"][sampled],
        top_p=device["top_p"][sampled],
        keys=device["keys"][sampled],
        has_filters=bool(has_filters.any()),
    )


def _decide(
    chosen: Tensor, plan: RoundPlan, table: SlotTable, device: Mapping[str, Tensor]
) -> Tensor:
    """[3, G, B] float64: token ids, log confidences, accepted flags, from ``_choose``'s rows, and
    what else is in these."""
    width = int(table.block_length[plan.group_slots].max())
    shape = (len(chosen) + 1, len(plan.group_slots), width)
    grid = torch.zeros(shape, dtype=torch.float64, device=chosen.device)
    place = (slice(None), device["row_groups"], device["row_places"])
    grid[place] = torch.cat([chosen, torch.ones_like(chosen[:1])])
    tokens, log_confidence, entropy, is_decided = grid[0], grid[1], grid[2], grid[-1] > 0
    confidence = log_confidence.to(torch.float32).exp()
    is_masked = is_decided
    edits = None
    if "masked" in device:
        is_masked = is_decided & device["masked"]
        is_other = tokens != device["canvas"]
        is_editable = is_decided & ~device["masked"]
        edits = find_edits(confidence, is_other, is_editable, device["editing_threshold"])
    limits = (device["minimum"], device["threshold"])
    if table.algorithm[plan.group_slots].any():
        accepted = accept_by(device["algorithm"], confidence, entropy.float(), is_masked, *limits)
    else:
        accepted = accept(confidence, is_masked, *limits)
    accepted = accepted if edits is None else accepted | edits
    return torch.stack([tokens, log_confidence, accepted.double(), *grid[3:-1]])


def _choices(packed: npt.NDArray[np.float64]) -> Choices:
    """Lines of ``_decide`` [7, G, B], as insert and delete editing reads them."""
    token_ids, log_probs = packed[[3, 5, 0]].astype(np.int64), packed[[4, 6, 1]]
    best, final, other = zip(token_ids, log_probs.astype(np.float32), strict=True)
    return Choices(*best, *other, *final)


def _resampler(
    model: BlockDiffusionModel, hidden: Tensor, plan: RoundPlan, edited: npt.NDArray[np.int64]
) -> Resample:
    """Choose anew at places of the ``edited`` groups, from the same hidden rows."""
    row_of = np.full((len(plan.group_slots), int(plan.row_places.max()) + 1), -1)
    row_of[plan.row_groups, plan.row_places] = np.arange(len(plan.row_groups))

    def resample(
        groups: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        banned: npt.NDArray[np.int64],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        rows = torch.from_numpy(row_of[edited[groups], places]).to(hidden.device)
        pairs = torch.from_numpy(banned).to(hidden.device)
        logits = model.head(hidden.index_select(0, rows))
        tokens, log_probs = best_unbanned(logits, pairs[:, 0], pairs[:, 1])
        return tokens.cpu().numpy(), log_probs.cpu().numpy()

    return resample
