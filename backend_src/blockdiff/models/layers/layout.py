"""Where the rows of a round go: padded segment groups and the way back, computed once per round.

Made of tensors that the host has filled, by device operations alone, so that it can be part of a
captured step. Knows nothing of layers; every layer reads the same layout.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff.models.layers.flat import FlatGroup, flat_group
from blockdiff.models.layers.grid_rows import GridRows, make_grid_rows
from blockdiff.models.layers.host_layout import HostLayout
from blockdiff.models.layers.looks import Look, Sight
from blockdiff.models.layers.segments import GroupRows
from blockdiff.models.numerics import Numerics
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
    make_look: Callable[[Tensor | None], Look]  # of its mask
    snapshot_members: Tensor | None  # [N] int64 in the group; None: no snapshots
    snapshot_lines: Tensor | None  # [N] int64 that get copies of those members' states
    flat: FlatGroup | None = None  # None: no op goes by flat rows
    _grid: GridRows | None = None

    @property
    def is_writing(self) -> bool:
        return self.host.is_writing

    @cached_property
    def mask(self) -> Tensor | None:
        """[G, T] bool, False for padding; None: no padding. Ops over flat rows never ask."""
        if self.lengths is None:
            return None
        return torch.arange(self.host.width, device=self.lengths.device) < self.lengths[:, None]

    @cached_property
    def look(self) -> Look:
        """Its attention over pages; made when first asked for, as ops over flat rows never do."""
        return self.make_look(self.mask)

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
    row_count: Tensor | None  # [1] int32: rows from there on are fillers; None: there are none
    logit_count: Tensor | None  # [1] int32: the same of logit rows
    attends_flat: bool  # nobody asks for a group's look

    def finishing(self) -> "RoundLayout":
        """The layout of the logit rows alone, for layers that need no more than count rows."""
        return replace(self, row_count=self.logit_count)

    def flatten(self, parts: list[Tensor]) -> Tensor:
        """One [G, T, ...] result per group -> flat rows [R, ...]."""
        flat = [part.reshape(-1, *part.shape[2:]) for part in parts]
        joined = flat[0] if len(flat) == 1 else torch.cat(flat)
        return joined if self.unpad is None else joined.index_select(0, self.unpad)


class Rotary(NamedTuple):
    """Of the angles that rows turn by."""

    dim: int
    theta: float


def make_layout(
    host: HostLayout, moved: Mapping[str, Tensor], rotary: Rotary, numerics: Numerics
) -> RoundLayout:
    """The layout of ``host``, whose arrays are the tensors ``moved`` of one device."""
    cos, sin = rope_angles(moved["positions"], *rotary)
    count = host.block_count
    return RoundLayout(
        token_ids=moved["token_ids"],
        positions=moved["positions"],
        logit_rows=moved["logit_rows"],
        groups=tuple(
            _group(group, moved, f"{number}.", host.page_length, numerics)
            for number, group in enumerate(host.groups)
        ),
        unpad=moved.get("unpad"),
        cos=cos,
        sin=sin,
        written_rows=moved["written_rows"],
        written_places=moved["written_places"],
        written_map=moved.get("written_map"),
        blocks=None if count is None else RowBlocks(moved["blocks"], count),
        row_count=moved.get("row_count"),
        logit_count=moved.get("logit_count"),
        attends_flat=host.attends_flat,
    )


def _group(
    group: GroupRows,
    moved: Mapping[str, Tensor],
    own: str,
    page_length: int,
    numerics: Numerics,
) -> SegmentGroup:

    def make_look(mask: Tensor | None) -> Look:
        return numerics.look(_sight(group, moved, own, page_length, mask))

    return SegmentGroup(
        host=group,
        slots=moved[own + "slots"],
        contexts=moved[own + "contexts"],
        lengths=moved[own + "lengths"] if group.is_padded else None,
        rows=moved.get(own + "rows"),
        make_look=make_look,
        snapshot_members=moved.get(own + "snapshot_members"),
        snapshot_lines=moved.get(own + "snapshot_lines"),
        flat=flat_group(group, moved, own),
    )


def _sight(
    group: GroupRows,
    moved: Mapping[str, Tensor],
    own: str,
    page_length: int,
    mask: Tensor | None,
) -> Sight:
    contexts, lengths = moved[own + "contexts"], moved[own + "lengths"]
    pages, blocks = moved.get(own + "pages"), moved.get(own + "block_lengths")
    cached = 0 if pages is None else pages.shape[1] * page_length
    visible = None
    if group.is_writing or group.is_padded or cached:
        sizes = (group.width, cached, group.is_writing)
        visible = visibility(contexts, lengths, *sizes, blocks)
    return Sight(contexts, group.width, pages, page_length, visible, mask)
