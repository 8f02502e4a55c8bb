"""How often the routers of a model chose each expert, summed up on the device.

Knows ids of chosen experts; knows nothing of routers, of rounds or of who reads the sums.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class LayerHits:
    """The line of one layer."""

    def __init__(self, counts: Tensor) -> None:
        self.counts = counts  # [E] int64, a view

    def add(self, ids: Tensor) -> None:
        """Count routed expert ids, int64 of any shape, in place; waits for nothing."""
        chosen = ids.flatten()
        self.counts.index_add_(0, chosen, torch.ones_like(chosen))


class ExpertHits:
    """One line per layer that has experts. Layers add to it while a forward runs."""

    def __init__(self, layers: Sequence[int], experts: int, device: torch.device) -> None:
        self.counts = torch.zeros((len(layers), experts), dtype=torch.int64, device=device)
        self._lines = {
            layer: LayerHits(line) for layer, line in zip(layers, self.counts, strict=True)
        }

    def of(self, layer: int) -> LayerHits | None:
        """The line of ``layer`` by its number in the model; None where it has no experts."""
        return self._lines.get(layer)
