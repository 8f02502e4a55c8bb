"""Memory of an encoder-decoder over canvases: keys and values by layer, and signals.

Sliding layers keep a ring of the positions their window can still reach, in the slot's state line.
Knows nothing of rounds, requests or of who holds which page.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff.cache.store import LayerCaches
from blockdiff.pages import CacheRoom, CacheSizes, CacheWork
from blockdiff.transfer import to_device


class LayerShape(NamedTuple):
    """What one layer keeps: all positions, in pages, or a ring whose place p % places has p."""

    kv_heads: int
    head_dim: int
    places: int | None  # None: all positions


class CanvasCaches(LayerCaches):
    """Keys and values whose shapes differ by layer, and one signal row per place of the canvas.

    layer_keys, layer_values   per layer [Hkv, pages, page_length, D], or for a ring
                               [Hkv, lines, places, D]            model dtype
    signals                    [slots, canvas, H]                 model dtype
    """

    def __init__(
        self,
        room: CacheRoom,
        shapes: Sequence[LayerShape],
        signal_shape: tuple[int, int],
        like: Tensor,
    ) -> None:
        """``like`` has the device and the dtype."""
        super().__init__(room, like.device)
        self.shapes = tuple(shapes)

        def zeros() -> tuple[Tensor, ...]:
            return tuple(like.new_zeros(_store_shape(room, shape)) for shape in shapes)

        self.layer_keys, self.layer_values = zeros(), zeros()
        self.signals = like.new_zeros((room.num_slots, *signal_shape))

    @property
    def page_stores(self) -> Sequence[Tensor]:
        """See ``LayerCaches``."""
        return self._stores(is_ring=False)

    @property
    def state_stores(self) -> Sequence[Tensor]:
        """See ``LayerCaches``."""
        return self._stores(is_ring=True)

    def _stores(self, is_ring: bool) -> list[Tensor]:
        chosen = [i for i, shape in enumerate(self.shapes) if (shape.places is not None) == is_ring]
        return [kind[i] for kind in (self.layer_keys, self.layer_values) for i in chosen]

    @torch.inference_mode()
    def prepare(self, work: CacheWork) -> None:
        """See ``LayerCaches``; slots that are reset lose their signals too."""
        super().prepare(work)
        if len(work.reset_slots):
            slots = to_device({"slots": work.reset_slots}, self.device)["slots"]
            self.signals.index_fill_(0, slots, 0)

    def committed(
        self, index: int, slot: int, length: int, pages: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """See ``LayerCaches``."""
        places = self.shapes[index].places
        if places is None:
            return super().committed(index, slot, length, pages)
        kept = torch.arange(max(length - places, 0), length, device=self.device) % places
        keys, values = self.layer_keys[index][:, slot], self.layer_values[index][:, slot]
        return keys.index_select(1, kept), values.index_select(1, kept)


def _store_shape(room: CacheRoom, shape: LayerShape) -> tuple[int, int, int, int]:
    if shape.places is None:
        return shape.kv_heads, room.pool.pages, room.pool.page_length, shape.head_dim
    return shape.kv_heads, room.lines, shape.places, shape.head_dim


def canvas_cache_sizes(
    shapes: Sequence[LayerShape], page_length: int, dtype: torch.dtype
) -> CacheSizes:
    """Sizes of ``CanvasCaches``."""
    pages = lines = 0
    for shape in shapes:
        each = 2 * shape.kv_heads * shape.head_dim * dtype.itemsize
        if shape.places is None:
            pages += page_length * each
        else:
            lines += shape.places * each
    return CacheSizes(pages, lines)
