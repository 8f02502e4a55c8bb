"""Rank 0's view of a split model whose previews also read signals of the step before.

Knows nothing of canvases or of how signals are made.
"""

import torch
from torch import Tensor

from blockdiff.models.base import ConditionedModel, ModelCaches
from blockdiff.parallel.messages import Command, encode
from blockdiff.parallel.model import ParallelCaches, ParallelModel
from blockdiff_kernels.head import Peaks, Rules


class ParallelConditionedModel(ParallelModel):
    """A ``ConditionedModel`` on all ranks."""

    @torch.inference_mode()
    def expect(self, logits: Tensor) -> Tensor:
        """See ``models.base``; every rank needs the whole rows, to know what share its part has."""
        message = encode(Command.EXPECT, logits.shape[0])
        return self.together(message, lambda: self._part.expect(self.group.broadcast(logits)))

    def expect_rows(self, hidden: Tensor, rules: Rules, peaks: Peaks) -> Tensor:
        """Never asked for: ranks that share a vocabulary have no head for kernels."""
        raise AssertionError("output_head is None")

    def store_signals(
        self, caches: ModelCaches, signals: Tensor, slots: Tensor, places: Tensor
    ) -> None:
        """See ``models.base``."""
        assert isinstance(caches, ParallelCaches), "caches come from new_caches"
        where = [*slots.tolist(), *places.tolist()]
        message = encode(Command.STORE_SIGNALS, caches.number, len(slots), rest=where)
        part, own = self._part, caches.own
        self.together(
            message,
            lambda: part.store_signals(own, self.group.broadcast(signals), slots, places),
        )

    def forget_signals(self, caches: ModelCaches, slots: Tensor) -> None:
        """See ``models.base``."""
        assert isinstance(caches, ParallelCaches), "caches come from new_caches"
        message = encode(Command.FORGET_SIGNALS, caches.number, rest=slots.tolist())
        part, own = self._part, caches.own
        self.together(message, lambda: part.forget_signals(own, slots))

    @property
    def _part(self) -> ConditionedModel:
        assert isinstance(self.own, ConditionedModel), "only such a model has signals"
        return self.own
