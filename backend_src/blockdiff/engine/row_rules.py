"""How each decided row of a round may choose its token: what is barred, and which rows are drawn.

Knows the slot table and the plan; knows nothing of logits or of what is accepted.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from blockdiff.decoding.sampling import Draws, RowSampling, noise_keys
from blockdiff.engine.adjustments import RowAdjustments, make_adjustments
from blockdiff.engine.insert_delete import InsertDelete
from blockdiff.scheduler import Masks, RoundPlan, SlotTable
from blockdiff.scheduler.arrays import Flags, Ints
from blockdiff.transfer import Array, to_device

# rows and ids, [K] each, in order of rows
Pairs = tuple[Ints, Ints]


class TopRows(NamedTuple):
    """Rows whose most probable tokens are wanted."""

    rows: Ints
    """[N], ascending"""
    most: int
    """Most that any of them wants."""

    def within(self, start: int, end: int) -> Ints:
        """Those from ``start`` to ``end``, numbered from there."""
        part = slice(*np.searchsorted(self.rows, [start, end]).tolist())
        found: Ints = self.rows[part] - start
        return found


@dataclass(frozen=True)
class RowRules:
    """Rules of all L rows, on the host; a tile of them goes to the device at a time."""

    never: tuple[int, ...]
    """Ids that no row may choose."""
    banned: Pairs | None
    draws: dict[str, npt.NDArray[Any]] | None
    """Arrays of ``Draws`` by name; None: every row is greedy."""
    changes: RowAdjustments | None = None
    top: TopRows | None = None
    masks: Masks | None = None

    @property
    def needs_logits(self) -> bool:
        """Whether only what has all logits of a row can choose by these rules."""
        has_least = self.draws is not None and "min_p" in self.draws
        has_more = self.changes is not None or self.masks is not None
        return has_least or has_more or self.top is not None

    @property
    def has_filters(self) -> bool:
        """Whether any row uses top-k or top-p."""
        own = self.draws
        return own is not None and bool((own["top_k"] > 0).any() or (own["top_p"] < 1).any())

    def filters(self, count: int) -> dict[str, Array]:
        """top-k and top-p of all ``count`` rows, off where nothing is drawn."""
        assert self.draws is not None, "nothing is drawn"
        top_k, top_p = np.zeros(count, np.int32), np.ones(count, np.float32)
        top_k[self.draws["rows"]] = self.draws["top_k"]
        top_p[self.draws["rows"]] = self.draws["top_p"]
        return {"top_k": top_k, "top_p": top_p}

    def whole(self, count: int) -> dict[str, Array]:
        """The rules of all ``count`` rows, a line each: ids that are barred, and how it is drawn.

        [L, W] int32, -1 for none; temperature [L], 0 where greedy; keys [L, 2] int32 words.
        """
        arrays: dict[str, Array] = {"banned": banned_ids(self.never, self.banned, count)}
        if self.draws is not None:
            own, rows = self.draws, self.draws["rows"]
            temperature = np.zeros(count, np.float32)
            temperature[rows] = own["temperature"]
            keys = np.zeros((count, 2), np.int64)
            keys[rows] = own["keys"]
            arrays |= {"temperature": temperature, "keys": as_words(keys)}
        return arrays

    def tile(self, start: int, end: int, device: torch.device) -> RowSampling:
        """The rules of rows ``start`` to ``end``, numbered from 0, as tensors of ``device``."""
        if self.banned is None and self.draws is None and not self.needs_logits:
            return RowSampling(self.never)
        arrays: dict[str, Array] = {}
        if self.banned is not None:
            rows, ids = self.banned
            part = slice(*np.searchsorted(rows, [start, end]).tolist())
            arrays |= {"banned_rows": rows[part] - start, "banned_ids": ids[part]}
        has_filters = False
        if self.draws is not None:
            own = self.draws
            part = slice(*np.searchsorted(own["rows"], [start, end]).tolist())
            drawn = {name: values[part] for name, values in own.items()}
            has_filters = bool((drawn["top_k"] > 0).any() or (drawn["top_p"] < 1).any())
            arrays |= {**drawn, "rows": drawn["rows"] - start}
        if self.top is not None:
            arrays["top_rows"] = self.top.within(start, end)
        if self.masks is not None:
            rows, bits = self.masks.within(start, end)
            arrays |= {"masked_rows": rows, "masks": bits}
        moved = to_device(arrays, device)
        pairs = None if self.banned is None else (moved.pop("banned_rows"), moved.pop("banned_ids"))
        is_drawn = self.draws is not None and len(arrays["rows"]) > 0
        top_rows = moved.pop("top_rows", None)
        masks = None if self.masks is None else (moved.pop("masked_rows"), moved.pop("masks"))
        return RowSampling(
            self.never,
            pairs,
            Draws(**moved, has_filters=has_filters) if is_drawn else None,
            None if self.changes is None else self.changes.tile(slice(start, end), device),
            top_rows,
            masks,
        )


def banned_ids(never: tuple[int, ...], banned: Pairs | None, count: int) -> npt.NDArray[np.int32]:
    """[L, W] ids that each of ``count`` rows may not choose, -1 for none; ``never`` first."""
    if banned is None:
        return np.tile(np.array(never, np.int32), (count, 1))
    rows, ids = banned
    # a row's pairs follow each other
    place = len(never) + np.arange(len(rows)) - np.searchsorted(rows, rows)
    table = np.full((count, int(place.max(initial=len(never) - 1)) + 1), -1, np.int32)
    table[:, : len(never)] = never
    table[rows, place] = ids
    return table


def as_words(keys: Ints) -> npt.NDArray[np.int32]:
    """Keys of ``noise_keys`` as 32-bit words."""
    return keys.astype(np.uint32).view(np.int32)


def make_rules(
    table: SlotTable, plan: RoundPlan, insert_delete: InsertDelete, is_edited: Flags
) -> RowRules:
    """Rules of the decided rows of ``plan``; is_edited [G]: groups with insertions, deletions."""
    slots = plan.group_slots
    can_end_early = (table.eos_allowed_from[slots] > table.block_start[slots]).any()
    is_drawn = table.temperature[slots] > 0
    never = insert_delete.never(bool(is_edited.any()))
    changes, top = make_adjustments(table, plan), find_top_rows(table, plan)
    if not (can_end_early or is_drawn.any() or is_edited.any()):
        return RowRules(never, None, None, changes, top)
    row_slots = slots[plan.row_groups]
    positions = table.block_start[row_slots] + plan.row_places
    banned = early_endings(table, row_slots, positions) if can_end_early else None
    if is_edited.any():
        others = np.flatnonzero(~is_edited[plan.row_groups])
        banned = _join(banned, _every(others, insert_delete.never(False)))
    draws = _draws(table, row_slots, positions) if is_drawn.any() else None
    return RowRules(never, banned, draws, changes, top)


def find_top_rows(table: SlotTable, plan: RoundPlan) -> TopRows | None:
    """Rows of requests that want to know the most probable tokens; None: there are none."""
    wanted = table.num_top[plan.group_slots]
    if not wanted.any():
        return None
    return TopRows(np.flatnonzero(wanted[plan.row_groups]), int(wanted.max()))


def early_endings(table: SlotTable, slots: Ints, positions: Ints) -> Pairs:
    """Pairs of rows [L] and the end tokens of their requests, where it is too early for these."""
    early = np.flatnonzero(positions < table.eos_allowed_from[slots])
    eos = table.eos_ids[slots[early]]
    rows, columns = np.nonzero(eos >= 0)
    return early[rows], eos[rows, columns]


def _every(rows: Ints, ids: tuple[int, ...]) -> Pairs:
    return np.repeat(rows, len(ids)), np.tile(np.array(ids, np.int64), len(rows))


def _join(some: Pairs | None, others: Pairs) -> Pairs:
    if some is None:
        return others
    rows = np.concatenate([some[0], others[0]])
    order = np.argsort(rows, kind="stable")
    return rows[order], np.concatenate([some[1], others[1]])[order]


def _draws(table: SlotTable, slots: Ints, positions: Ints) -> dict[str, npt.NDArray[Any]]:
    rows = np.flatnonzero(table.temperature[slots] > 0)
    chosen = slots[rows]
    draws = {
        "rows": rows,
        "temperature": table.temperature[chosen],
        "top_k": table.top_k[chosen],
        "top_p": table.top_p[chosen],
        "keys": noise_keys(table.seed[chosen], positions[rows], table.step[chosen]),
    }
    min_p = table.min_p[chosen]
    return draws | {"min_p": min_p} if min_p.any() else draws
