"""What ``decisions.decide`` does, on the device: the same blocks as tensors, one copy back.

Knows the slot table and the plan; knows nothing of how tokens are chosen.
"""

import numpy as np
from torch import Tensor

from blockdiff.engine.decisions import block_width, least_accepted
from blockdiff.scheduler import Decisions, RoundPlan, SlotTable
from blockdiff.scheduler.arrays import Ints
from blockdiff.transfer import Array, to_device
from blockdiff_kernels.denoise import Blocks, Preview, accept

NO_ROW = -1


def update_blocks(table: SlotTable, plan: RoundPlan, preview: Preview) -> Tensor:
    """The plan's groups after ``preview``, packed as ``accept`` does."""
    blocks = to_device(block_arrays(table, plan), preview.tokens.device)
    return accept(Blocks(**blocks), preview)


def block_arrays(table: SlotTable, plan: RoundPlan) -> dict[str, Array]:
    """Fields of ``Blocks`` for the plan's groups."""
    slots, width = plan.group_slots, block_width(table, plan)
    arrays: dict[str, Array] = {
        "canvas": table.canvas[slots, :width],
        "log_probs": table.log_probs[slots, :width],
        "is_open": table.masked[slots, :width],
        "rows": row_grid(plan, width),
        "algorithm": table.algorithm[slots],
        "minimum": least_accepted(table, slots),
        "threshold": table.threshold[slots],
        "is_editing": table.is_editing[slots],
        "editing_threshold": table.editing_threshold[slots],
        "post_steps": table.post_steps[slots],
        "max_post_steps": table.max_post_steps[slots],
    }
    return {
        name: array if array.dtype == np.float32 else array.astype(np.int32)
        for name, array in arrays.items()
    }


def row_grid(plan: RoundPlan, width: int) -> Ints:
    """Decided row [G, B] of every place of the groups, or ``NO_ROW``."""
    grid = np.full((len(plan.group_slots), width), NO_ROW)
    grid[plan.row_groups, plan.row_places] = np.arange(len(plan.row_groups))
    return grid


def read_decisions(packed: Array, length: int) -> Decisions:
    """Host copy of what ``update_blocks`` gave, for blocks of up to ``length`` places."""
    width = packed.shape[1] // 3
    canvas, bits, is_open = np.split(packed[:, : 3 * width], 3, axis=1)
    return Decisions(
        canvas=canvas[:, :length].astype(np.int64),
        log_probs=bits[:, :length].copy().view(np.float32),
        is_open=is_open[:, :length] != 0,
        is_settled=packed[:, 3 * width] != 0,
    )
