"""From hidden rows to blocks as captured steps: rows choose tokens, blocks take those they accept.

They read hidden rows where captured forwards leave them, so that the host prepares the rules while
the forward runs. Knows nothing of how rows or rules come about.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from torch import Tensor

from blockdiff.decoding.acceptance import ALGORITHMS, ENTROPY_BOUNDED
from blockdiff.engine.decisions import block_width
from blockdiff.engine.device_blocks import NO_ROW, block_arrays
from blockdiff.engine.fused_choice import has_others, is_possible
from blockdiff.engine.row_rules import RowRules
from blockdiff.engine.static_buffers import lay
from blockdiff.engine.step_runner import StepRunner
from blockdiff.models.base import ModelInfo, OutputHead
from blockdiff.scheduler import RoundPlan, SlotTable
from blockdiff.scheduler.arrays import MAX_EOS_IDS
from blockdiff.transfer import Array
from blockdiff_kernels.denoise import Blocks, Preview, accept
from blockdiff_kernels.head import MOST_LISTED, Entropy, Filters, RowDraws, Rules, choose

NO_TOKEN = -1


class Way(IntEnum):
    """How rows choose; a later one launches what the earlier ones do, and more."""

    GREEDY = 0
    DRAWN = 1
    LISTED = 2
    """Some from so few tokens that these are looked up."""
    FILTERED = 3
    """Some by top-k or top-p of any kind."""

    @classmethod
    def of(cls, rules: RowRules) -> "Way":
        """The first one that does what ``rules`` ask for."""
        if rules.draws is None:
            return cls.GREEDY
        if not rules.has_filters:
            return cls.DRAWN
        return cls.FILTERED if has_others(rules.draws) else cls.LISTED


class ChoiceKey(NamedTuple):
    """What the sizes and launches of a step follow from."""

    rows: int
    way: Way
    has_entropy: bool


class CapturedChoice:
    """Choices of up to as many rows as ``hidden`` [L, H] has, for blocks of one model."""

    def __init__(
        self,
        runner: StepRunner,
        head: OutputHead,
        hidden: Tensor,
        num_slots: int,
        info: ModelInfo,
    ) -> None:
        self._runner = runner
        self._head = head
        self._hidden = hidden
        self._groups = num_slots
        self._width = info.block_length
        self._barred = len(info.control_token_ids) + MAX_EOS_IDS
        # models whose blocks are never decided by entropies need no steps with them
        self._entropies = (False, True)[: 1 + (ALGORITHMS[ENTROPY_BOUNDED] in info.algorithms)]
        self._rows: tuple[int, ...] = ()

    def capture(self, rows: Sequence[int]) -> None:
        """Capture steps of so many rows, the largest first, for all ways to choose."""
        for count in sorted(set(rows), reverse=True):
            for way, has_entropy in product(reversed(Way), self._entropies):
                key = ChoiceKey(count, way, has_entropy)
                self._runner.capture(key, self._empty(key), partial(self._step, key))
        self._rows = tuple(sorted(set(rows)))

    def _step(self, key: ChoiceKey, moved: Mapping[str, Tensor]) -> Sequence[Tensor]:
        rules = Rules(
            banned=moved["banned"],
            draws=_draws(key.way, moved),
            entropy=Entropy.PLAIN if key.has_entropy else Entropy.NONE,
            live=moved["live"],
        )
        found = choose(self._hidden[: key.rows], *self._head, rules)
        blocks = Blocks(*(moved[f"block.{name}"] for name in Blocks._fields))
        return [accept(blocks, Preview(found.tokens, found.log_probs, found.entropy))]

    def _empty(self, key: ChoiceKey) -> dict[str, Array]:
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
        arrays["banned"] = np.full((key.rows, self._barred), NO_TOKEN, np.int32)
        arrays["live"] = np.zeros(1, np.int32)
        if key.way >= Way.DRAWN:
            arrays["temperature"] = np.zeros(key.rows, np.float32)
            arrays["keys"] = np.zeros((key.rows, 2), np.int32)
        if key.way >= Way.LISTED:
            arrays["top_k"] = np.zeros(key.rows, np.int32)
            arrays["top_p"] = np.ones(key.rows, np.float32)
        return arrays

    def run(
        self, table: SlotTable, plan: RoundPlan, rules: RowRules, has_entropy: bool
    ) -> Tensor | None:
        """The plan's groups after the preview whose hidden rows lie in ``hidden``; as ``accept``
        packs them, in the length of the model's blocks. None: it is not one of the captured steps.
        """
        count = len(plan.logit_rows)
        rows = next((size for size in self._rows if size >= count), None)
        is_unusual = not is_possible(rules, False) or block_width(table, plan) > self._width
        if rows is None or is_unusual or len(plan.group_slots) > self._groups:
            return None
        key = ChoiceKey(rows, Way.of(rules), has_entropy)
        assert has_entropy in self._entropies, "the model's blocks are not decided by entropies"
        arrays = self._empty(key)
        arrays["live"][0] = count
        own = rules.whole(count) | (rules.filters(count) if key.way >= Way.LISTED else {})
        for name, array in own.items():
            lay(array, arrays[name])
        for name, array in block_arrays(table, plan).items():
            lay(array, arrays[f"block.{name}"])
        (packed,) = self._runner.run(key, arrays)
        return packed[: len(plan.group_slots)]


def _draws(way: Way, moved: Mapping[str, Tensor]) -> RowDraws | None:
    if way is Way.GREEDY:
        return None
    filters = None
    if way >= Way.LISTED:
        # what rows ask for is not known here: room for the most, and passes for all
        limits = (moved["top_k"], moved["top_p"])
        filters = Filters(*limits, MOST_LISTED, way is Way.FILTERED)
    return RowDraws(moved["temperature"], moved["keys"], filters)
