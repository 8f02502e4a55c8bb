"""One round on the device: plan in, decisions out, one copy to the host.

Knows nothing of requests or of what the decisions mean for them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blockdiff.decoding.acceptance import ENTROPY_BOUNDED
from blockdiff.decoding.adjust import adjust
from blockdiff.decoding.alternatives import best_unbanned, choose_alternatives
from blockdiff.decoding.levenshtein import Choices, Controls
from blockdiff.decoding.sampling import choose_tokens, entropies, top_tokens
from blockdiff.engine.decisions import Chosen, block_width, decide, overwrite, spread
from blockdiff.engine.device_blocks import read_decisions, update_blocks
from blockdiff.engine.fused_choice import choose_at_once, is_possible, usable_head
from blockdiff.engine.insert_delete import InsertDelete, Resample
from blockdiff.engine.rounds import Rounds
from blockdiff.engine.row_rules import RowRules, TopRows, make_rules
from blockdiff.models.base import BlockDiffusionModel, RoundBatch
from blockdiff.scheduler import NOTHING, Certifier, Decisions, RoundPlan, SlotTable
from blockdiff.scheduler.arrays import Ints
from blockdiff.scheduler.decisions import TopTokens
from blockdiff.transfer import Array, fetch
from blockdiff_kernels.denoise import Preview
from blockdiff_kernels.implementation import TRITON, choose

# Logits that exist at one time: rows times vocabulary. Noise and the order of tokens need int64
# copies of it.
GREEDY_TILE = 1 << 24
SAMPLED_TILE = 1 << 22


def run_round(
    rounds: Rounds,
    table: SlotTable,
    plan: RoundPlan,
    insert_delete: InsertDelete,
    certifier: Certifier,
) -> Decisions:
    """Forward of ``plan``; caches are written in place by its prefills and commits."""
    model, statistics = rounds.model, rounds.statistics
    hidden, hits = rounds.hidden(make_batch(table, plan))
    if not len(plan.group_slots):
        return NOTHING
    # A device computes while the host prepares what follows the forward.
    is_edited = insert_delete.edits(table, plan.group_slots)
    rules = make_rules(table, plan, insert_delete, is_edited)
    rules = replace(rules, masks=certifier.masks(plan))
    has_entropy = bool((table.algorithm[plan.group_slots] == ENTROPY_BOUNDED).any())
    controls = insert_delete.controls if is_edited.any() else None
    counts = statistics.due(hits)
    if controls is None and not _is_watched(table, plan):
        packed = rounds.decide(hidden, table, plan, rules, has_entropy)
        if packed is not None:
            found = fetch([packed, *counts])
            for own in found[1:]:
                statistics.publish(own)
            return read_decisions(found[0], block_width(table, plan))
    lines, top = _choose(model, hidden, rules, has_entropy, controls)
    updated = _updated(table, plan, lines, has_entropy)
    # Of blocks that the device has updated, only those with insertions, deletions need the lines.
    wanted = lines if is_edited.any() or not updated else []
    found = fetch([*wanted, *updated, *top, *counts])
    if counts:
        statistics.publish(found.pop())
    tops = [found.pop() for _ in top][::-1]
    if updated:
        decisions = read_decisions(found.pop(), block_width(table, plan))
    else:
        decisions = decide(table, plan, _chosen(found, has_entropy))
    if is_edited.any():
        edited = np.flatnonzero(is_edited)
        choices = _choices(table, plan, found[:2] + found[2 + has_entropy :], edited)
        resample = _resampler(model, hidden, plan, edited, rules)
        update = insert_delete.decide(table, plan.group_slots[edited], choices, resample)
        decisions = overwrite(decisions, edited, update)
    return decisions if rules.top is None else with_top(decisions, plan, rules.top, tops)


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
        pages=plan.pages,
        snapshots=plan.snapshots,
    )


def _is_watched(table: SlotTable, plan: RoundPlan) -> bool:
    """Whether what open places say is wanted, which the device keeps for itself."""
    return bool(table.wants_canvases[plan.group_slots].any())


def with_top(
    decisions: Decisions, plan: RoundPlan, wanted: TopRows, found: Sequence[Array]
) -> Decisions:
    """``decisions`` with ids and log probabilities [N, T] ``found`` of the ``wanted`` rows."""
    ids, log_probs = found
    groups, places = plan.row_groups[wanted.rows], plan.row_places[wanted.rows]
    top = TopTokens(groups, places, ids.astype(np.int64), log_probs.astype(np.float32))
    return replace(decisions, top=top)


def _updated(
    table: SlotTable, plan: RoundPlan, lines: Sequence[Tensor], has_entropy: bool
) -> list[Tensor]:
    """The blocks that the ``lines`` of ``_choose`` leave, where the device decides; or nothing."""
    on_host = table.is_constrained[plan.group_slots].any() or _is_watched(table, plan)
    if on_host or choose("denoise", lines[0].device) is not TRITON:
        return []
    return [update_blocks(table, plan, Preview(*lines[: 2 + has_entropy]))]


def _choose(
    model: BlockDiffusionModel,
    hidden: Tensor,
    rules: RowRules,
    has_entropy: bool,
    controls: Controls | None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Token ids [L] int64 and log confidences [L] float32 of the rows; where wanted, entropies.

    With ``controls``, four more lines: ids and log probabilities of the best token, masks included,
    and of the best that is no control token. Besides them ids and log probabilities [N, T] of the
    most probable tokens of rows that want them, or nothing. Works on a tile of logits at a time,
    or without any.
    """
    head = usable_head(model.output_head, hidden)
    if head is not None and is_possible(rules, controls is not None):
        return choose_at_once(head, hidden, rules, has_entropy, controls), []
    is_large = rules.draws is not None or rules.top is not None
    tile = SAMPLED_TILE if is_large else GREEDY_TILE
    size, count = max(tile // model.info.vocab_size, 1), len(hidden)
    tiles, tops = [], []
    # without rows once too, for lines of no length
    for start in range(0, max(count, 1), size):
        end = min(start + size, count)
        logits = model.head(hidden[start:end])
        sampling = rules.tile(start, end, logits.device)
        if sampling.changes is not None:
            adjust(logits, sampling.changes)
        if rules.top is not None and sampling.top_rows is not None:
            tops.append(top_tokens(logits[sampling.top_rows], rules.top.most))
        spread_out = [entropies(logits)] if has_entropy else []
        if controls is None:
            first, second = choose_tokens(logits, sampling)
            tiles.append([first, second, *spread_out])
        else:
            first, second, *others = choose_alternatives(logits, sampling, controls)
            tiles.append([first, second, *spread_out, *others])
    return _joined(tiles), _joined(tops)


def _joined(tiles: Sequence[list[Tensor]]) -> list[Tensor]:
    """Lines of all tiles, one after the other."""
    if len(tiles) == 1:
        return tiles[0]
    return [torch.cat(parts) for parts in zip(*tiles, strict=True)]


def _chosen(lines: Sequence[npt.NDArray[Any]], has_entropy: bool) -> Chosen:
    """Lines of ``_choose``, on the host."""
    return Chosen(lines[0], lines[1], lines[2] if has_entropy else None)


def _choices(table: SlotTable, plan: RoundPlan, lines: Sequence[Array], edited: Ints) -> Choices:
    """Lines of ``_choose`` without entropies, as insert and delete editing reads them."""
    width = block_width(table, plan)
    other, best, final = (
        [spread(plan, line, width)[edited] for line in lines[first : first + 2]]
        for first in (0, 2, 4)
    )
    return Choices(*best, *other, *final)


def _resampler(
    model: BlockDiffusionModel,
    hidden: Tensor,
    plan: RoundPlan,
    edited: npt.NDArray[np.int64],
    rules: RowRules,
) -> Resample:
    """Choose anew at places of the ``edited`` groups, from the same hidden rows."""
    row_of = np.full((len(plan.group_slots), int(plan.row_places.max()) + 1), -1)
    row_of[plan.row_groups, plan.row_places] = np.arange(len(plan.row_groups))

    def resample(
        groups: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        banned: npt.NDArray[np.int64],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        chosen = row_of[edited[groups], places]
        rows = torch.from_numpy(chosen).to(hidden.device)
        pairs = torch.from_numpy(banned).to(hidden.device)
        logits = model.head(hidden.index_select(0, rows))
        if rules.changes is not None:
            adjust(logits, rules.changes.tile(chosen, hidden.device))
        tokens, log_probs = best_unbanned(logits, pairs[:, 0], pairs[:, 1])
        best, confidence = fetch([tokens, log_probs])
        return best, confidence

    return resample
