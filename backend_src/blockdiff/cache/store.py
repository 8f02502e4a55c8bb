"""Memory of a model: keys and values in pages, recurrent states and tails in state lines.

Everything is allocated once. Knows nothing of rounds, requests or of who holds which page.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from blockdiff.config import FULL, LINEAR, AttentionConfig, HybridConfig
from blockdiff.pages import CacheRoom, CacheSizes, CacheWork
from blockdiff.transfer import to_device
from blockdiff_kernels.gated_delta import GRID_ROWS


class LayerCaches(ABC):
    """Keys and values by attention layer; written only by commits and ``prepare``.

    Stores of pages are [..., pages, page_length, D]; stores of state lines [., lines, ...].
    """

    layer_keys: tuple[Tensor, ...]
    """Per attention layer [Hkv, pages, page_length, D], in model dtype."""
    layer_values: tuple[Tensor, ...]

    def __init__(self, room: CacheRoom, device: torch.device) -> None:
        self.room = room
        self.device = device
        self.num_slots = room.num_slots
        self.max_context = room.max_context

    @property
    @abstractmethod
    def page_stores(self) -> Sequence[Tensor]:
        """All memory that is in pages."""

    @property
    def state_stores(self) -> Sequence[Tensor]:
        """All memory that is in state lines."""
        return ()

    @torch.inference_mode()
    def prepare(self, work: CacheWork) -> None:
        """Do ``work``, in its order, in place."""
        if work.is_empty:
            return
        lines = to_device(work.arrays(), self.device)
        for store in self.page_stores:
            _copy(store, -3, lines["copy_from"], lines["copy_to"])
            # stale rows are masked, but a masked nan would still poison a product with zero
            _clear(store, -3, lines["cleared"])
        for store in self.state_stores:
            _clear(store, 1, lines["reset_slots"])
            _copy(store, 1, lines["restore_from"], lines["restore_to"])

    def committed(
        self, index: int, slot: int, length: int, pages: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Copies [Hkv, kept, D] of attention layer ``index``'s keys and values of a sequence.

        They are those of the last of the ``length`` positions committed, oldest first: all that
        the layer keeps. ``pages``: where the sequence lies; None: the slot's own.
        """
        if pages is None:
            first = slot * self._pages_per_slot
            pages = range(first, first + self._pages_per_slot)
        chosen = torch.tensor(pages, dtype=torch.int64, device=self.device)
        keys, values = (
            store[index].index_select(1, chosen).flatten(1, 2)[:, :length]
            for store in (self.layer_keys, self.layer_values)
        )
        return keys, values

    @property
    def _pages_per_slot(self) -> int:
        assert self.room.pages_per_slot is not None, "pages of a pool have to be named"
        return self.room.pages_per_slot


def _copy(store: Tensor, dim: int, source: Tensor, target: Tensor) -> None:
    if source.numel():
        store.index_copy_(dim, target, store.index_select(dim, source))


def _clear(store: Tensor, dim: int, lines: Tensor) -> None:
    if lines.numel():
        store.index_fill_(dim, lines, 0)


class KeyValueCaches(LayerCaches):
    """Pages of one shape for all layers.

    keys, values   [attention layers, Hkv, pages, page_length, D]    model dtype
    """

    def __init__(self, room: CacheRoom, layers: int, heads: int, dim: int, like: Tensor) -> None:
        """``like`` has the device and the dtype."""
        super().__init__(room, like.device)
        shape = (layers, heads, room.pool.pages, room.pool.page_length, dim)
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        # one view per layer, so that a layer does not index its stack in every round
        self.layer_keys, self.layer_values = self.keys.unbind(), self.values.unbind()

    @property
    def page_stores(self) -> Sequence[Tensor]:
        """See ``LayerCaches``."""
        return self.keys, self.values


class SlotCaches(KeyValueCaches):
    """Caches of a hybrid model: recurrent states and convolution tails too.

    states         [delta layers, lines, Hv, dk, dv]                 float32
    tails          [delta layers, lines, k - 1, channels]            model dtype, oldest first
    """

    def __init__(self, room: CacheRoom, config: HybridConfig, like: Tensor) -> None:
        """``like`` has the device and the dtype."""
        layers, delta_layers = (config.layer_types.count(kind) for kind in (FULL, LINEAR))
        super().__init__(room, layers, config.num_key_value_heads, config.head_dim, like)
        size = (delta_layers, room.lines)
        state, tail = _line_shapes(config)
        self.states = like.new_zeros((*size, *state), dtype=torch.float32)
        self.tails = like.new_zeros((*size, *tail))
        self.layer_states, self.layer_tails = self.states.unbind(), self.tails.unbind()

    @property
    def state_stores(self) -> Sequence[Tensor]:
        """See ``LayerCaches``."""
        return self.states, self.tails


class GridCaches(SlotCaches):
    """A hybrid model's caches where results must not depend on how a sequence is cut.

    anchors        as states, at the last point of the grid         float32
    recents        [delta layers, lines, kept rows, channels + 2 Hv] model dtype, oldest first:
                   projected rows since then, and those that their convolution reads
    """

    def __init__(self, room: CacheRoom, config: HybridConfig, like: Tensor) -> None:
        """``like`` has the device and the dtype."""
        super().__init__(room, config, like)
        self.anchors = torch.zeros_like(self.states)
        self.recents = like.new_zeros((*self.states.shape[:2], *_recent_shape(config)))
        self.layer_anchors, self.layer_recents = self.anchors.unbind(), self.recents.unbind()

    @property
    def state_stores(self) -> Sequence[Tensor]:
        """See ``LayerCaches``."""
        return *super().state_stores, self.anchors, self.recents


def kept_rows(taps: int) -> int:
    """Rows of ``recents``: up to a chunk of the grid less one, and what their convolution reads."""
    return GRID_ROWS - 1 + taps - 1


def _recent_shape(config: HybridConfig) -> tuple[int, int]:
    width = config.conv_channels + 2 * config.linear_num_value_heads
    return kept_rows(config.linear_conv_kernel_dim), width


def _line_shapes(config: HybridConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """One layer's recurrent state and convolution tail in one state line."""
    state = (config.linear_key_head_dim, config.linear_value_head_dim)
    tail = (config.linear_conv_kernel_dim - 1, config.conv_channels)
    return (config.linear_num_value_heads, *state), tail


def key_value_sizes(config: AttentionConfig, page_length: int, dtype: torch.dtype) -> CacheSizes:
    """Sizes of ``KeyValueCaches`` of a model whose layers all attend."""
    each = 2 * config.num_key_value_heads * config.head_dim * dtype.itemsize
    return CacheSizes(config.num_hidden_layers * page_length * each, 0)


def slot_cache_sizes(
    config: HybridConfig, page_length: int, dtype: torch.dtype, has_grid: bool = False
) -> CacheSizes:
    """Sizes of ``SlotCaches``, or with ``has_grid`` of ``GridCaches``."""
    each = 2 * config.num_key_value_heads * config.head_dim * dtype.itemsize
    state, tail = (torch.Size(shape).numel() for shape in _line_shapes(config))
    line = state * torch.float32.itemsize + tail * dtype.itemsize
    if has_grid:
        kept = torch.Size(_recent_shape(config)).numel()
        line += state * torch.float32.itemsize + kept * dtype.itemsize
    kinds = config.layer_types
    return CacheSizes(kinds.count(FULL) * page_length * each, kinds.count(LINEAR) * line)
