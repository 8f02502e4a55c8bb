"""Which logits of a round's rows are changed, and by how much: the host's side of ``adjust``.

Knows the slot table and the plan; knows nothing of logits or of what is chosen.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from blockdiff.decoding.adjust import Adjustment
from blockdiff.scheduler import RoundPlan, SlotTable
from blockdiff.scheduler.arrays import NO_TOKEN, Floats, Ints
from blockdiff.scheduler.token_pairs import KEY_BITS, Pairs, count_in
from blockdiff.transfer import Array, to_device

_LOW_BITS = (1 << KEY_BITS) - 1


@dataclass(frozen=True)
class RowAdjustments:
    """Changes of all L rows of G groups, on the host."""

    pairs: Pairs
    """Of all groups, one after the other; see ``token_pairs``."""
    starts: Ints
    """[G + 1] where those of each group begin."""
    groups: Ints
    """[L] group of each row, ascending."""
    rows: dict[str, Array]
    """[L] by their names in ``Adjustment``."""

    def tile(self, rows: slice | Ints, device: torch.device) -> Adjustment:
        """Changes of ``rows``, ascending, as tensors of ``device``."""
        groups = self.groups[rows]
        begin, end = self.starts[groups[[0, -1]] + [0, 1]].tolist() if len(groups) else (0, 0)
        pairs = self.pairs[begin:end]
        length = self.starts[groups + 1] - self.starts[groups]
        arrays: dict[str, Array] = {name: values[rows] for name, values in self.rows.items()}
        arrays |= {"first": self.starts[groups] - begin, "length": length}
        arrays |= {"ids": pairs["key"] & _LOW_BITS, "held": pairs["count"].astype(np.int64)}
        for name in ("bias", "start", "slope", "most", "is_once"):
            arrays[name] = pairs[name].copy()
        return Adjustment(**to_device(arrays, device), total=int(length.sum()))


def make_adjustments(table: SlotTable, plan: RoundPlan) -> RowAdjustments | None:
    """Changes of the decided rows of ``plan``; None: there are none."""
    slots = plan.group_slots
    if not table.is_adjusted[slots].any():
        return None
    for slot in slots[table.is_counted[slots]].tolist():
        table.pairs[slot].catch_up(table.sequences[slot], int(table.final[slot]))
    runs = [table.pairs[slot].pairs for slot in slots.tolist()]
    numbers = np.arange(len(slots))
    pairs = np.concatenate(runs)
    pairs["key"] += np.repeat(numbers << KEY_BITS, [len(run) for run in runs])
    pairs = count_in(pairs, _held_tokens(table, slots))
    starts = np.searchsorted(pairs["key"], np.append(numbers, len(slots)) << KEY_BITS)
    return RowAdjustments(pairs, starts, plan.row_groups, _row_values(table, plan))


def _held_tokens(table: SlotTable, slots: Ints) -> Ints:
    """Keys of the tokens that the open canvases of ``slots`` [G] hold already.

    A random canvas holds pinned ones only, until it is finished.
    """
    places = np.arange(table.canvas.shape[1])
    is_held = ~table.masked[slots] & (places >= table.first_response[slots, None])
    is_held &= places < table.block_length[slots, None]
    # what an autoregressive request has decided is final already
    is_held &= (table.is_counted & ~table.is_autoregressive)[slots, None]
    lines, columns = np.nonzero(is_held)
    keys: Ints = (lines << KEY_BITS) | table.canvas[slots[lines], columns]
    return keys


def _row_values(table: SlotTable, plan: RoundPlan) -> dict[str, Array]:
    owners, places = plan.group_slots[plan.row_groups], plan.row_places
    is_open = table.masked[owners, places] | ~table.is_counted[owners]
    first = table.block_start[owners] - table.prompt_length[owners]
    penalties: dict[str, npt.NDArray[np.float32] | Floats] = {
        "repetition": table.repetition_penalty[owners],
        "presence": table.presence_penalty[owners],
        "frequency": table.frequency_penalty[owners],
    }
    return {
        "own": np.where(is_open, NO_TOKEN, table.canvas[owners, places]),
        "place": (first + places).astype(np.float32),
        **penalties,
    }
