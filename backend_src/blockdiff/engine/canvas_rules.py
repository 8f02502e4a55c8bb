"""How the rows of random canvases choose: what ``row_rules`` is for rows of masks.

Knows the slot table and the plan; knows nothing of logits or of what is accepted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from blockdiff.decoding.draws import Places
from blockdiff.decoding.uniform import step_temperatures
from blockdiff.engine.adjustments import RowAdjustments, make_adjustments
from blockdiff.engine.row_rules import TopRows, early_endings, find_top_rows
from blockdiff.scheduler import Masks, RoundPlan, SlotTable


@dataclass(frozen=True)
class CanvasRules:
    """Rules of all L rows, on the host."""

    arrays: dict[str, npt.NDArray[Any]]
    """[L] slots, places, temperature, and min_p where any row has one; [K] banned_rows, banned_ids.
    """
    changes: RowAdjustments | None
    top: TopRows | None
    masks: Masks | None = None

    @property
    def has_least(self) -> bool:
        """Whether any row uses min-p."""
        return "min_p" in self.arrays

    @property
    def needs_logits(self) -> bool:
        """Whether only what has all logits of a row can choose by these rules."""
        has_more = self.changes is not None or self.masks is not None
        return self.has_least or has_more or self.top is not None

    def banned(self, rows: slice, moved: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Rows, numbered from the first of ``rows``, and ids that these may not choose."""
        ends = np.searchsorted(self.arrays["banned_rows"], [rows.start, rows.stop]).tolist()
        part = slice(*ends)
        return moved["banned_rows"][part] - rows.start, moved["banned_ids"][part]


def make_canvas_rules(
    table: SlotTable, plan: RoundPlan, places: Places, masks: Masks | None
) -> CanvasRules:
    """Rules of the rows of ``plan``, which are all ``places`` of its canvases."""
    slots = plan.group_slots[plan.row_groups]
    left = (table.step[slots], table.schedule_steps[slots])
    banned_rows, banned_ids = early_endings(table, slots, places.positions)
    arrays: dict[str, npt.NDArray[Any]] = {
        "slots": slots,
        "places": plan.row_places,
        "temperature": step_temperatures(*left, table.t_min[slots], table.t_max[slots]),
        "banned_rows": banned_rows,
        "banned_ids": banned_ids,
    }
    min_p = table.min_p[slots]
    if min_p.any():
        arrays["min_p"] = min_p
    return CanvasRules(arrays, make_adjustments(table, plan), find_top_rows(table, plan), masks)
