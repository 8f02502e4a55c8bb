"""How often the routers of a model chose each expert, summed up on the device.

Knows ids of chosen experts; knows nothing of routers, of rounds or of who reads the sums.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class LayerHits:
    """The line of one layer."""

    def __init__(self, counts: Tensor, row_count: Tensor | None = None) -> None:
        self.counts = counts  # [E] int64, a view
        self.row_count = row_count  # [1] int32: rows from there on do not count; None: all do

    def add(self, ids: Tensor) -> None:
        """Count routed expert ids [R, k] int64 in place; waits for nothing."""
        counted = torch.ones_like(ids)
        if self.row_count is not None:
            is_row = torch.arange(len(ids), device=ids.device) < self.row_count
            counted = is_row.unsqueeze(1).expand_as(ids).to(ids.dtype)
        self.counts.index_add_(0, ids.flatten(), counted.flatten())


class ExpertHits:
    """One line per layer that has experts. Layers add to it while a forward runs."""

    def __init__(self, layers: Sequence[int], experts: int, device: torch.device) -> None:
        self.counts = torch.zeros((len(layers), experts), dtype=torch.int64, device=device)
        self._lines = dict(zip(layers, self.counts, strict=True))

    def of(self, layer: int, row_count: Tensor | None = None) -> LayerHits | None:
        """The line of ``layer`` by its number in the model; None where it has no experts.

        ``row_count`` [1] int32: how many rows there are before fillers; None: there are none.
        """
        line = self._lines.get(layer)
        return None if line is None else LayerHits(line, row_count)
