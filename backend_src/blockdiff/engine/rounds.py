"""The forwards of an engine's rounds: replayed where a step was captured, plainly otherwise.

Knows when experts are counted; knows nothing of plans or of what hidden rows are for.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from blockdiff.engine.captured_rounds import CapturedRounds
from blockdiff.engine.device_canvases import DeviceCanvases
from blockdiff.engine.row_rules import RowRules
from blockdiff.engine.statistics import ExpertStatistics
from blockdiff.errors import EngineDeadError
from blockdiff.models.base import BlockDiffusionModel, ModelCaches, RoundBatch
from blockdiff.models.expert_hits import ExpertHits
from blockdiff.scheduler import RoundPlan, SlotTable
from blockdiff.transfer import Array

logger = logging.getLogger(__name__)


@dataclass
class StepCounts:
    """How many rounds ran which way."""

    replayed: int = 0
    decided: int = 0
    """Rounds whose choice of tokens was replayed."""
    plain: Counter[str] = field(default_factory=Counter)
    """By reason, see ``step_shapes``; nothing where no steps are captured."""


class Rounds:
    """Runs batches over one engine's caches."""

    def __init__(
        self,
        model: BlockDiffusionModel,
        caches: ModelCaches,
        statistics: ExpertStatistics,
        captured: CapturedRounds | None = None,
    ) -> None:
        self.model = model
        self.caches = caches
        self.statistics = statistics
        self.captured = captured
        self.counts = StepCounts()

    def hidden(self, batch: RoundBatch) -> tuple[Tensor, ExpertHits | None]:
        """Hidden rows [L, H] of ``batch``, and where its experts were counted, if they were.

        The rows are good until the next round.
        """
        rows = len(batch.token_ids)
        if self.captured is not None:
            shape = self.captured.find(batch)
            if not isinstance(shape, str):
                self.counts.replayed += 1
                hits = self.statistics.next_round(rows, always=True)
                return self.captured.hidden(batch, shape), hits
            self.counts.plain[shape] += 1
        hits = self.statistics.next_round(rows)
        if hits is None:
            # only models that have experts need to know of hits
            return self.model.hidden(batch, self.caches), None
        return self.model.hidden(batch, self.caches, hits=hits), hits

    def decide(
        self,
        hidden: Tensor,
        table: SlotTable,
        plan: RoundPlan,
        rules: RowRules,
        has_entropy: bool,
    ) -> Tensor | None:
        """Blocks of the plan's groups by a captured step, as ``device_blocks`` reads them.

        ``hidden``: rows of this round; ``has_entropy``: some blocks are decided by it. None: there
        is no step for it.
        """
        if self.captured is None:
            return None
        packed = self.captured.decide(hidden, table, plan, rules, has_entropy)
        self.counts.decided += packed is not None
        return packed

    @property
    def canvases(self) -> DeviceCanvases | None:
        """See ``CapturedRounds``."""
        return None if self.captured is None else self.captured.canvases

    def renew(
        self, hidden: Tensor, rows: Mapping[str, Array], canvases: Mapping[str, Array]
    ) -> Tensor | None:
        """Random canvases by a captured step; as ``CapturedRounds.renew``."""
        if self.captured is None:
            return None
        packed = self.captured.renew(hidden, rows, canvases)
        self.counts.decided += packed is not None
        return packed

    def capture(self) -> None:
        """Capture all steps; for an idle engine, whose statistics are to be restarted after it.

        Where that fails, all rounds run plainly, or EngineDeadError says that they must not.
        """
        if self.captured is None:
            return
        try:
            self.captured.capture(self.statistics.hits)
        except Exception as error:
            if self.captured.is_required:
                text = f"rounds cannot be captured: {error}; leave out cuda_graphs"
                raise EngineDeadError(text) from error
            logger.exception("rounds cannot be captured and run plainly")
            self.captured = None

    def restart(self) -> None:
        """Forget how many rounds ran and what they counted."""
        self.counts = StepCounts()
        self.statistics.restart()
