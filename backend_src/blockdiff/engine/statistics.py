"""Which experts rounds use: every so many rounds are looked at and now and then copied to the host.

The engine's thread counts and publishes; any thread may read what was published last. Knows nothing
of routers or of where the numbers are shown.
"""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blockdiff.models.base import ModelInfo
from blockdiff.models.expert_hits import ExpertHits
from blockdiff.scheduler.arrays import Ints

PUBLISH_SECONDS = 1.0


@dataclass(frozen=True)
class ExpertCounts:
    """What was counted up to some round. Never changed once made."""

    layers: tuple[int, ...]
    """[N] numbers of the layers that have experts."""
    hits: Ints
    """[N, E] rows that chose each expert."""
    rounds: int
    rows: int
    """Rows of these rounds, of prompts, canvases and commits alike; the last layer's experts see
    only those that are decided, unless its router looks at whole blocks."""

    @property
    def imbalance(self) -> npt.NDArray[np.float64]:
        """[N] hits of the most used expert over the mean; 0 as long as nothing was counted."""
        mean = self.hits.mean(axis=1)
        ratio: npt.NDArray[np.float64] = self.hits.max(axis=1) / np.where(mean > 0, mean, 1.0)
        return ratio

    @property
    def active(self) -> npt.NDArray[np.float64]:
        """[N] share of the experts that have any hit."""
        share: npt.NDArray[np.float64] = (self.hits > 0).mean(axis=1)
        return share


class ExpertStatistics:
    """Sums since the last ``restart``. With interval 0, or a model without experts: nothing."""

    def __init__(self, info: ModelInfo, device: torch.device, interval: int) -> None:
        self._layers = info.expert_layers
        self._experts = info.num_experts
        self._device = device
        self._interval = interval if info.num_experts else 0
        self._hits = ExpertHits(self._layers, self._experts, self._device)
        self.restart()

    @property
    def hits(self) -> ExpertHits | None:
        """Where rounds count their experts, always the same; None: they never do."""
        return self._hits if self._interval else None

    def restart(self) -> None:
        """Forget everything."""
        self._hits.counts.zero_()
        self._seen = self._rounds = self._rows = 0
        self._published_at = 0.0
        self.published: ExpertCounts | None = None

    def next_round(self, rows: int, always: bool = False) -> ExpertHits | None:
        """Where a round of so many rows counts its experts; None: it is not looked at.

        ``always``: it counts them whether it is its turn or not.
        """
        if not self._interval:
            return None
        self._seen += 1
        if not always and self._seen % self._interval != 1 % self._interval:
            return None
        self._rounds += 1
        self._rows += rows
        return self._hits

    def due(self, hits: ExpertHits | None) -> list[Tensor]:
        """What a round that counted in ``hits`` should copy to the host for ``publish``, if so."""
        is_late = time.monotonic() - self._published_at >= PUBLISH_SECONDS
        return [hits.counts] if hits is not None and is_late else []

    def publish(self, counts: npt.NDArray[np.generic]) -> None:
        """Let others see ``counts`` [N, E], copied from the tensor of ``due``."""
        self._published_at = time.monotonic()
        hits = counts.astype(np.int64)
        self.published = ExpertCounts(self._layers, hits, self._rounds, self._rows)

    def catch_up(self) -> ExpertCounts | None:
        """Publish what has not been yet; waits for the device only if there is something."""
        known = 0 if self.published is None else self.published.rounds
        if self._rounds > known:
            self.publish(self._hits.counts.cpu().numpy())
        return self.published
