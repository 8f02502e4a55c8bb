"""What ``uniform`` decides of canvases, on the device, which keeps their progress; one copy back.

Knows the slot table; knows nothing of how tokens are chosen.
"""

import numpy as np
import torch
from torch import Tensor

from blockdiff.scheduler import SlotTable
from blockdiff.scheduler.arrays import Ints
from blockdiff.transfer import Array, to_device
from blockdiff_kernels.denoise import Canvases, Progress, Step, renew


class DeviceCanvases:
    """Canvases of ``width`` places of up to ``num_slots`` requests."""

    def __init__(self, num_slots: int, width: int, device: torch.device) -> None:
        self.spare = num_slots
        """A line of ``progress`` that is nobody's."""
        self.progress = Progress(
            torch.zeros((num_slots + 1, width), dtype=torch.int32, device=device),
            torch.zeros(num_slots + 1, dtype=torch.int32, device=device),
        )

    def renew(self, table: SlotTable, slots: Ints, step: Step, fresh: Ints) -> Tensor:
        """The canvases of ``slots`` [G] after ``step``, packed; fresh [G, B] random tokens."""
        moved = to_device(canvas_arrays(table, slots, fresh), step.entropy.device)
        return renew(Canvases(**moved), self.progress, step)


def canvas_arrays(table: SlotTable, slots: Ints, fresh: Ints) -> dict[str, Array]:
    """Fields of ``Canvases`` for the canvases of ``slots`` [G]; fresh [G, B] random tokens."""
    width = fresh.shape[1]
    ints: dict[str, Array] = {
        "canvas": table.canvas[slots, :width],
        "fresh": fresh,
        "is_given": table.pinned[slots, :width],
        "slots": slots,
        "step": table.step[slots],
        "steps": table.schedule_steps[slots],
        "stability": table.stability_threshold[slots],
    }
    arrays: dict[str, Array] = {name: array.astype(np.int32) for name, array in ints.items()}
    return arrays | {
        "bound": table.threshold[slots],
        "confidence": table.confidence_threshold[slots],
    }
