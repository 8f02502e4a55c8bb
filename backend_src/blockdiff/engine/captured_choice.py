"""From hidden rows to blocks as captured steps: rows choose tokens, blocks take those they accept.

They read hidden rows where captured forwards leave them, so that the host prepares the rules while
the forward runs. Knows nothing of how rows or rules come about.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from blockdiff.engine.decisions import block_width
from blockdiff.engine.device_blocks import NO_ROW, block_arrays
from blockdiff.engine.row_rules import RowRules
from blockdiff.engine.step_runner import StepRunner
from blockdiff.models.base import OutputHead
from blockdiff.scheduler import RoundPlan, SlotTable
from blockdiff.scheduler.arrays import MAX_EOS_IDS
from blockdiff.transfer import Array
from blockdiff_kernels.denoise import Blocks, Preview, accept
from blockdiff_kernels.head import RowDraws, Rules, choose

NO_TOKEN = -1


class _Key(NamedTuple):
    rows: int
    is_drawn: bool


class CapturedChoice:
    """Choices of up to as many rows as ``hidden`` [L, H] has, for blocks of one model."""

    def __init__(
        self,
        runner: StepRunner,
        head: OutputHead,
        hidden: Tensor,
        num_slots: int,
        block_length: int,
        never: Sequence[int],
    ) -> None:
        """``never``: ids that no row may choose, but for those with insertions and deletions."""
        self._runner = runner
        self._head = head
        self._hidden = hidden
        self._groups = num_slots
        self._width = block_length
        self._barred = len(never) + MAX_EOS_IDS
        self._rows: tuple[int, ...] = ()

    def capture(self, rows: Sequence[int]) -> None:
        """Capture steps of so many rows, the largest first, greedy and drawn."""
        for count in sorted(set(rows), reverse=True):
            for is_drawn in (True, False):
                self._runner.capture(
                    _Key(count, is_drawn), self._empty(count, is_drawn), self._step
                )
        self._rows = tuple(sorted(set(rows)))

    def _step(self, moved: Mapping[str, Tensor]) -> Sequence[Tensor]:
        banned, live = moved["banned"], moved["live"]
        draws = None
        if "keys" in moved:
            draws = RowDraws(moved["temperature"], moved["keys"])
        rows = self._hidden[: len(banned)]
        found = choose(rows, *self._head, Rules(banned=banned, draws=draws, live=live))
        blocks = Blocks(*(moved[f"block.{name}"] for name in Blocks._fields))
        return [accept(blocks, Preview(found.tokens, found.log_probs))]

    def _empty(self, rows: int, is_drawn: bool) -> dict[str, Array]:
        """Arrays of no rows and no blocks."""
        groups, places = self._groups, (self._groups, self._width)
        arrays: dict[str, Array] = {
            f"block.{name}": np.zeros(groups, np.int32) for name in Blocks._fields
        }
        for name in ("canvas", "is_open"):
            arrays[f"block.{name}"] = np.zeros(places, np.int32)
        arrays["block.rows"] = np.full(places, NO_ROW, np.int32)
        arrays["block.log_probs"] = np.zeros(places, np.float32)
        for name in ("threshold", "editing_threshold"):
            arrays[f"block.{name}"] = np.zeros(groups, np.float32)
        arrays["banned"] = np.full((rows, self._barred), NO_TOKEN, np.int32)
        arrays["live"] = np.zeros(1, np.int32)
        if is_drawn:
            arrays["temperature"] = np.zeros(rows, np.float32)
            arrays["keys"] = np.zeros((rows, 2), np.int32)
        return arrays

    def run(self, table: SlotTable, plan: RoundPlan, rules: RowRules) -> Tensor | None:
        """The plan's groups after the preview whose hidden rows lie in ``hidden``; as ``accept``
        packs them, in the length of the model's blocks. None: it is not one of the captured steps.
        """
        count = len(plan.logit_rows)
        rows = next((size for size in self._rows if size >= count), None)
        is_unusual = rules.has_filters or rules.needs_logits
        is_unusual |= block_width(table, plan) > self._width
        if rows is None or is_unusual or len(plan.group_slots) > self._groups:
            return None
        key = _Key(rows, rules.draws is not None)
        arrays = self._empty(*key)
        arrays["live"][0] = count
        for name, array in rules.whole(count).items():
            _lay(array, arrays[name])
        for name, array in block_arrays(table, plan).items():
            _lay(array, arrays[f"block.{name}"])
        (packed,) = self._runner.run(key, arrays)
        return packed[: len(plan.group_slots)]


def _lay(array: Array, room: Array) -> None:
    """Put ``array`` into the first corner of ``room``."""
    room[tuple(slice(size) for size in array.shape)] = array
