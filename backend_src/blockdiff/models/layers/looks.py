"""How the rows of a group look at keys: as fast as can be, or over a grid of positions.

A look knows which keys its group sees; it is made once per round and used by every layer. Knows
nothing of layers.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from blockdiff_kernels.attention import attention
from blockdiff_kernels.attention.by_position import KEY_TILE, attention_by_position
from blockdiff_kernels.attention.reference import gather
from blockdiff_kernels.row_tiles import RowTiles


class Sight(NamedTuple):
    """What G segments of T rows see."""

    contexts: Tensor  # [G] int64
    width: int  # T
    pages: Tensor | None  # [G, n] int64 where cached rows lie; None: nothing is cached
    page_length: int
    visible: Tensor | None  # [G, 1, T, n * page_length + T] bool; None: all own rows, no others
    mask: Tensor | None  # [G, T] bool, False for padding; None: no padding
    is_ring: bool = False  # cached rows are the last ones before the context, not the first

    @property
    def cached(self) -> int:
        return 0 if self.pages is None else self.pages.shape[1] * self.page_length


class Look(Protocol):
    """Attention of one group."""

    def __call__(
        self,
        own: tuple[Tensor, Tensor, Tensor],
        cached: tuple[Tensor, Tensor],
        scale: float | None = None,
    ) -> Tensor:
        """o [G, T, Hq, D] of own query [G, T, Hq, D], key and value [G, T, Hkv, D] and of cached
        keys and values [Hkv, pages, page_length, D]; ``scale`` None: 1 / sqrt(D)."""
        ...


class PlainLook:
    """One call for all keys."""

    def __init__(self, sight: Sight) -> None:
        self.sight = sight

    def __call__(
        self,
        own: tuple[Tensor, Tensor, Tensor],
        cached: tuple[Tensor, Tensor],
        scale: float | None = None,
    ) -> Tensor:
        """See ``Look``."""
        sight = self.sight
        return attention(*own, *cached, sight.pages, sight.visible, sight.mask, scale)


@dataclass(frozen=True, eq=False)
class SteadyLook:
    """Keys on a grid of positions, so that a row's bits depend on what it sees alone."""

    sight: Sight
    tiles: RowTiles
    columns: Tensor  # [G * M] int64 for each place of the grid: which of the group's keys
    visible: Tensor  # [G, tiles, T, 1, KEY_TILE] bool

    def __call__(
        self,
        own: tuple[Tensor, Tensor, Tensor],
        cached: tuple[Tensor, Tensor],
        scale: float | None = None,
    ) -> Tensor:
        """See ``Look``."""
        query, *rows = own
        key, value = (self._on_grid(new, old) for new, old in zip(rows, cached, strict=True))
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        return attention_by_position(query, key, value, self.visible, factor, self.tiles)

    def _on_grid(self, own: Tensor, stored: Tensor) -> Tensor:
        """Own rows [G, T, Hkv, D] and cached ones -> [Hkv, G, M, D] by position."""
        sight = self.sight
        if sight.mask is not None:
            own = own.masked_fill(~sight.mask[:, :, None, None], 0)
        # [Hkv, G, cached + T, D]
        keys = own.permute(2, 0, 1, 3)
        if sight.pages is not None:
            keys = torch.cat((gather(stored, sight.pages).transpose(0, 1), keys), dim=2)
        heads, segments, _, dim = keys.shape
        found = keys.flatten(1, 2).index_select(1, self.columns)
        return found.view(heads, segments, -1, dim)


def make_steady_look(sight: Sight, tiles: RowTiles) -> SteadyLook:
    """Lay what a group sees on the grid of positions, whose tiles start at multiples of a tile."""
    contexts, cached = sight.contexts.unsqueeze(1), sight.cached
    # [G, 1] position of the first cached row, and the start of its tile
    first = contexts - cached if sight.is_ring else torch.zeros_like(contexts)
    base = first.clamp_min(0) // KEY_TILE * KEY_TILE
    longest = cached + sight.width + (KEY_TILE - 1 if sight.is_ring else 0)
    places = torch.arange(-(-longest // KEY_TILE) * KEY_TILE, device=contexts.device)
    positions = base + places
    is_own = positions >= contexts
    columns = torch.where(is_own, positions - contexts + cached, positions - first)
    exists = (columns >= 0) & (columns < cached + sight.width)
    columns = columns.clamp(0, cached + sight.width - 1)
    # [G, M, T]
    visible = exists.unsqueeze(2).expand(-1, -1, sight.width)
    if sight.visible is not None:
        index = columns.unsqueeze(1).expand(-1, sight.width, -1)
        seen = sight.visible.squeeze(1).expand(len(contexts), sight.width, -1)
        visible = visible & seen.gather(2, index).transpose(1, 2)
    tiled = visible.unflatten(1, (-1, KEY_TILE)).transpose(2, 3).unsqueeze(3)
    starts = torch.arange(len(contexts), device=contexts.device).unsqueeze(1)
    flat = (columns + starts * (cached + sight.width)).flatten()
    return SteadyLook(sight, tiles, flat, tiled.contiguous())
