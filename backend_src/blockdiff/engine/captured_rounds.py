"""Rounds of a model as captured steps: which are captured, and one of them for a batch.

Knows the model's two halves, on the host and on the device; knows nothing of requests.
"""

import logging
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from blockdiff.core import Phase
from blockdiff.engine.captured_canvases import CapturedCanvases
from blockdiff.engine.captured_choice import CapturedChoice
from blockdiff.engine.device_canvases import DeviceCanvases
from blockdiff.engine.recorder import Recorder
from blockdiff.engine.row_rules import RowRules
from blockdiff.engine.step_runner import StepRunner
from blockdiff.engine.step_shapes import find_shape
from blockdiff.models.base import ConditionedModel, ModelCaches, RoundBatch, Segment
from blockdiff.models.expert_hits import ExpertHits
from blockdiff.models.round_shape import RoundShape
from blockdiff.models.trunk import LanguageModel
from blockdiff.scheduler import RoundPlan, SlotTable
from blockdiff.transfer import Array

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS = 10.0


class CapturedRounds:
    """The forwards of one model over one engine's caches."""

    def __init__(
        self,
        model: LanguageModel,
        caches: ModelCaches,
        shapes: Sequence[RoundShape],
        recorder: Recorder,
        is_required: bool = False,
    ) -> None:
        """``shapes``: smaller ones first; ``is_required``: rounds shall not run otherwise."""
        self.is_required = is_required
        self._model = model
        self._caches = caches
        self._shapes = shapes
        self._ready: Sequence[RoundShape] = ()
        self._runner = StepRunner(recorder, model.device)
        longest = max(shape.logit_rows for shape in shapes)
        # where every step leaves its rows, for the steps that choose from them
        self._rows = torch.zeros(
            (longest, model.hidden_size), dtype=model.dtype, device=model.device
        )
        self._choice = self._make_choice()
        self._canvases = self._make_canvases()

    @property
    def nbytes(self) -> int:
        """Device memory of all captured steps."""
        return self._runner.nbytes + self._rows.nbytes

    def _make_choice(self) -> CapturedChoice | None:
        """None for canvases of random tokens."""
        model, head = self._model, self._model.output_head
        if head is None or model.info.uniform is not None:
            return None
        return CapturedChoice(
            self._runner,
            head,
            self._rows,
            self._caches.room.num_slots,
            model.info,
        )

    def _make_canvases(self) -> CapturedCanvases | None:
        """None for all but canvases of random tokens."""
        model, head = self._model, self._model.output_head
        if head is None or model.info.uniform is None:
            return None
        assert isinstance(model, ConditionedModel), "random canvases need signals"
        return CapturedCanvases(self._runner, model, self._caches, head, self._rows)

    @property
    def canvases(self) -> DeviceCanvases | None:
        """What captured steps of random canvases keep from one to the next, for all others too."""
        return None if self._canvases is None else self._canvases.progress

    def capture(self, hits: ExpertHits | None) -> None:
        """Capture the steps of all shapes, the largest first, whose memory the others then share.

        They count experts in ``hits``, always. Overwrites what slot 0 and page 0 hold: for an idle
        engine.
        """
        began = said = time.monotonic()
        for count, shape in enumerate(reversed(self._shapes)):
            self._capture(shape, hits)
            now = time.monotonic()
            if now - said >= _PROGRESS_SECONDS:
                said = now
                logger.info("captured %d of %d steps", count + 1, len(self._shapes))
        for choice in (self._choice, self._canvases):
            if choice is not None:
                choice.capture([shape.logit_rows for shape in self._shapes])
        self._ready = self._shapes
        size = self.nbytes / 2**20
        text = "captured %d steps in %.1f s; they take %.1f MiB"
        logger.info(text, len(self._shapes), time.monotonic() - began, size)

    def _capture(self, shape: RoundShape, hits: ExpertHits | None) -> None:
        host = self._model.prepare(_least_batch(shape), self._caches, shape)

        def step(moved: Mapping[str, Tensor]) -> Sequence[Tensor]:
            found = self._model.run(host, moved, self._caches, hits=hits)
            return [self._rows[: shape.logit_rows].copy_(found)]

        self._runner.capture(shape, host.arrays, step)

    def find(self, batch: RoundBatch) -> RoundShape | str:
        """The captured shape for ``batch``, or why there is none."""
        return find_shape(self._ready, batch, self._caches.room.pool.page_length)

    def hidden(self, batch: RoundBatch, shape: RoundShape) -> Tensor:
        """As the model's; good until the next round."""
        host = self._model.prepare(batch, self._caches, shape)
        (rows,) = self._runner.run(shape, host.arrays)
        return rows[: len(batch.logit_rows)]

    def decide(
        self,
        hidden: Tensor,
        table: SlotTable,
        plan: RoundPlan,
        rules: RowRules,
        has_entropy: bool,
    ) -> Tensor | None:
        """The plan's groups after a preview with ``hidden`` rows [L, H]; see ``CapturedChoice``.

        None: no step is captured for it.
        """
        if self._choice is None or not self._holds(hidden):
            return None
        return self._choice.run(table, plan, rules, has_entropy)

    def renew(
        self, hidden: Tensor, rows: Mapping[str, Array], canvases: Mapping[str, Array]
    ) -> Tensor | None:
        """Random canvases after a step with ``hidden`` rows [L, H]; see ``CapturedCanvases``.

        None: no step is captured for it.
        """
        if self._canvases is None or not self._holds(hidden):
            return None
        return self._canvases.run(rows, canvases)

    def _holds(self, hidden: Tensor) -> bool:
        """Whether steps find ``hidden`` rows, which are copied if their round was not replayed."""
        if len(hidden) > len(self._rows):
            return False
        if hidden.data_ptr() != self._rows.data_ptr():
            self._rows[: len(hidden)].copy_(hidden)
        return True


def _least_batch(shape: RoundShape) -> RoundBatch:
    """One row of each kind of segment in ``shape``, all of slot 0 and page 0."""
    segments = []
    if shape.writing:
        segments.append(Segment(Phase.COMMIT, 0, 0, [0]))
    if shape.previews:
        segments.append(Segment(Phase.PREVIEW, 0, len(segments), [0]))
    pages = np.zeros((len(segments), shape.pages), np.int64)
    return RoundBatch.from_segments(segments, pages)
