"""Where the rows of a round go: padded segment groups and the way back, computed once per round.

Made on the host and moved by one transfer. Knows nothing of layers; every layer reads the same
layout.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from blockdiff.cache import LayerCaches
from blockdiff.models.base import RoundBatch
from blockdiff.models.layers.flat import (
    FlatGroup,
    flat_arrays,
    flat_group,
    wants_flat,
    written_map,
)
from blockdiff.models.layers.grid_rows import GridRows, make_grid_rows
from blockdiff.models.layers.looks import Look, Sight
from blockdiff.models.layers.page_maps import page_table, read_pages, written_places
from blockdiff.models.layers.row_blocks import BlockCover, number_blocks
from blockdiff.models.layers.segments import GroupRows, group_segments, way_back
from blockdiff.models.numerics import Numerics
from blockdiff.pages import Ints
from blockdiff.transfer import Array, to_device
from blockdiff_kernels.attention import visibility
from blockdiff_kernels.coreset import RowBlocks
from blockdiff_kernels.rope import rope_angles


@dataclass
class SegmentGroup:
    """Segments processed together as [G, T] rows, padded to the longest."""

    host: GroupRows
    slots: Tensor  # [G] int64
    contexts: Tensor  # [G] int64
    lengths: Tensor | None  # [G] int64; None: all segments have T rows
    rows: Tensor | None  # [G * T] int64 flat rows, padding repeats the last; None: the whole round
    mask: Tensor | None  # [G, T] bool, False for padding; None: no padding
    look: Look  # its attention over pages
    snapshot_members: Tensor | None  # [N] int64 in the group; None: no snapshots
    snapshot_lines: Tensor | None  # [N] int64 that get copies of those members' states
    flat: FlatGroup | None = None  # None: no op goes by flat rows
    _grid: GridRows | None = None

    @property
    def is_writing(self) -> bool:
        return self.host.is_writing

    def pad(self, x: Tensor) -> Tensor:
        """Flat rows [R, ...] -> [G, T, ...]."""
        picked = x if self.rows is None else x.index_select(0, self.rows)
        return picked.view(*self.host.rows.shape, *x.shape[1:])

    def on_grid(self, taps: int) -> GridRows:
        """Where the rows lie on the grid of recurrent states; ``taps`` are those of a convolution,
        the same in all layers."""
        if self._grid is None:
            lengths = self.lengths
            if lengths is None:
                lengths = torch.full_like(self.contexts, self.host.width)
            self._grid = make_grid_rows(self.contexts, lengths, self.host.width, taps)
        return self._grid


@dataclass
class RoundLayout:
    """Index maps of one round."""

    token_ids: Tensor  # [R] int64
    positions: Tensor  # [R] int64
    logit_rows: Tensor  # [L] int64
    groups: tuple[SegmentGroup, ...]  # wave after wave of writing groups, previews after them
    unpad: Tensor | None  # [R] int64 into the groups' padded rows laid end to end; None: same order
    cos: Tensor  # [R, rotary / 2] float32
    sin: Tensor
    written_rows: Tensor  # [W] flat rows of writing segments
    written_places: Tensor  # [W] in pages laid end to end
    written_map: Tensor | None  # [R] these places by row, NOT_WRITTEN elsewhere; None: as ``flat``
    blocks: RowBlocks | None  # for routers that look at whole blocks

    def flatten(self, parts: list[Tensor]) -> Tensor:
        """One [G, T, ...] result per group -> flat rows [R, ...]."""
        flat = [part.reshape(-1, *part.shape[2:]) for part in parts]
        joined = flat[0] if len(flat) == 1 else torch.cat(flat)
        return joined if self.unpad is None else joined.index_select(0, self.unpad)


class Rotary(NamedTuple):
    """Of the angles that rows turn by."""

    dim: int
    theta: float


def build_layout(
    batch: RoundBatch,
    caches: LayerCaches,
    numerics: Numerics,
    rotary: Rotary,
    is_block_causal: bool = False,
    cover: BlockCover | None = None,
) -> RoundLayout:
    """Index maps for ``batch``; its segments may come in any order of phases.

    Rows of a writing segment see their own segment causally or, for ``is_block_causal``, all of
    their block and the blocks before it. ``cover``: the rows whose blocks routers ask for.
    """
    groups = group_segments(batch, numerics.is_deterministic)
    page_length, table = caches.room.pool.page_length, page_table(batch, caches.room)
    names = ("token_ids", "positions", "logit_rows")
    arrays: dict[str, Array] = {name: getattr(batch, name) for name in names}
    back, count = way_back(groups, len(batch.token_ids)), 0
    if back is not None:
        arrays["unpad"] = back
    written = written_places(batch, table, page_length)
    arrays["written_rows"], arrays["written_places"] = written
    is_flat = wants_flat(caches.device)
    if is_flat:
        arrays["written_map"] = written_map(*written, len(batch.token_ids))
    if cover is not None:
        blocks = number_blocks(batch, cover)
        arrays["blocks"], count = blocks.numbers, blocks.count
    for number, group in enumerate(groups):
        pages = read_pages(table, batch.contexts, group, page_length)
        own = _group_arrays(batch, group, pages, is_block_causal)
        if is_flat:
            own |= flat_arrays(batch, group, pages)
        arrays |= {f"{number}.{name}": array for name, array in own.items()}
    moved = to_device(arrays, caches.device)
    cos, sin = rope_angles(moved["positions"], *rotary)
    return RoundLayout(
        token_ids=moved["token_ids"],
        positions=moved["positions"],
        logit_rows=moved["logit_rows"],
        groups=tuple(
            _group(group, moved, f"{number}.", page_length, numerics)
            for number, group in enumerate(groups)
        ),
        unpad=moved.get("unpad"),
        cos=cos,
        sin=sin,
        written_rows=moved["written_rows"],
        written_places=moved["written_places"],
        written_map=moved.get("written_map"),
        blocks=None if cover is None else RowBlocks(moved["blocks"], count),
    )


def _group_arrays(
    batch: RoundBatch, group: GroupRows, pages: Ints | None, is_block_causal: bool
) -> dict[str, Array]:
    """What a group needs on the device; maps that it can do without are left out."""
    members = group.members
    found: dict[str, Array] = {
        "slots": batch.slots[members],
        "contexts": batch.contexts[members],
        "lengths": group.lengths,
    }
    if group.is_padded or len(members) != len(batch.slots):
        found["rows"] = group.rows.ravel()
    if pages is not None:
        found["pages"] = pages
    if is_block_causal:
        found["block_lengths"] = batch.block_lengths[members]
    if group.is_writing and batch.snapshots is not None:
        lines = batch.snapshots[members]
        picked = np.flatnonzero(lines >= 0)
        if len(picked):
            found["snapshot_members"], found["snapshot_lines"] = picked, lines[picked]
    return found


def _group(
    group: GroupRows,
    moved: Mapping[str, Tensor],
    own: str,
    page_length: int,
    numerics: Numerics,
) -> SegmentGroup:
    contexts, lengths = moved[own + "contexts"], moved[own + "lengths"]
    pages, blocks = moved.get(own + "pages"), moved.get(own + "block_lengths")
    cached = 0 if pages is None else pages.shape[1] * page_length
    mask = None
    if group.is_padded:
        mask = torch.arange(group.width, device=lengths.device) < lengths.unsqueeze(1)
    visible = None
    if group.is_writing or group.is_padded or cached:
        sizes = (group.width, cached, group.is_writing)
        visible = visibility(contexts, lengths, *sizes, blocks)
    return SegmentGroup(
        host=group,
        slots=moved[own + "slots"],
        contexts=contexts,
        lengths=lengths if group.is_padded else None,
        rows=moved.get(own + "rows"),
        mask=mask,
        look=numerics.look(Sight(contexts, group.width, pages, page_length, visible, mask)),
        snapshot_members=moved.get(own + "snapshot_members"),
        snapshot_lines=moved.get(own + "snapshot_lines"),
        flat=flat_group(group, moved, own),
    )
