"""Per-slot memory of an encoder-decoder over canvases: keys and values by layer, and signals.

Sliding layers keep a ring of the positions their window can still reach. Knows nothing of rounds,
requests or of who holds which slot.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff.cache.store import LayerCaches


class LayerShape(NamedTuple):
    """What one layer keeps per slot; position p lies at place p % places."""

    kv_heads: int
    places: int
    head_dim: int


class CanvasCaches(LayerCaches):
    """Keys and values whose shapes differ by layer, and one signal row per place of the canvas.

    layer_keys, layer_values   per layer [slots, Hkv, places, D]     model dtype
    signals                    [slots, canvas, H]                    model dtype
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        signal_shape: tuple[int, int, int],
        max_context: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        num_slots = signal_shape[0]
        super().__init__(num_slots, max_context, device)

        def zeros() -> tuple[Tensor, ...]:
            return tuple(
                torch.zeros((num_slots, *shape), dtype=dtype, device=device) for shape in shapes
            )

        self.layer_keys, self.layer_values = zeros(), zeros()
        self.signals = torch.zeros(signal_shape, dtype=dtype, device=device)

    def reset(self, slots: Tensor) -> None:
        """Forget ``slots`` [N] int64: zero lengths, signals and the rows ever committed."""
        if slots.numel() == 0:
            return
        used = int(self.lengths.index_select(0, slots).max())
        for stored in (*self.layer_keys, *self.layer_values):
            stored[:, :, :used].index_fill_(0, slots, 0)
        self.signals.index_fill_(0, slots, 0)
        self.lengths.index_fill_(0, slots, 0)
