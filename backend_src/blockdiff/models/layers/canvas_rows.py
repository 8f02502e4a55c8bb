"""Index maps of a round for encoder-decoder models: which rows are canvas, and sliding windows.

Complements ``layout``; knows nothing of layers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch
from blockdiff.models.layers.layout import RoundLayout, SegmentGroup
from blockdiff_kernels.attention import window_visibility


@dataclass
class CanvasRows:
    """The preview rows of a round."""

    is_canvas: Tensor  # [R] int64, 1 for preview rows, 0 for the encoder's
    rows: Tensor  # [P] flat rows of previews
    slots: Tensor  # [P]
    places: Tensor  # [P] in the canvas


def find_canvas_rows(batch: RoundBatch) -> CanvasRows:
    """Where the canvases of ``batch`` lie."""
    owner = _owners(batch)
    is_canvas = (batch.phases == int(Phase.PREVIEW)).index_select(0, owner)
    rows = is_canvas.nonzero().squeeze(1)
    owner = owner.index_select(0, rows)
    first = batch.contexts.index_select(0, owner)
    return CanvasRows(
        is_canvas=is_canvas.long(),
        rows=rows,
        slots=batch.slots.index_select(0, owner),
        places=batch.positions.index_select(0, rows) - first,
    )


@dataclass
class RingGroup:
    """A group of the layout with what it needs to attend over rings."""

    rows: SegmentGroup
    places: Tensor | None  # [G, cached] of the last positions before each context, oldest first
    visible: Tensor | None  # [G, 1, T, cached + T]


@dataclass
class RingLayout:
    """Rings of one capacity: where windows are read and which rows are kept."""

    writers: tuple[RingGroup, ...]  # in the order of the layout's groups
    canvases: tuple[RingGroup, ...]
    kept_rows: Tensor  # [W] flat rows of writing segments that a later row can still see
    kept_slots: Tensor  # [W]
    kept_places: Tensor  # [W]


def build_ring_layout(
    batch: RoundBatch, layout: RoundLayout, window: int, capacity: int
) -> RingLayout:
    """Index maps for rings of ``capacity`` places and a sliding ``window`` of positions."""
    owner = _owners(batch).index_select(0, layout.written_rows)
    lengths = batch.segment_starts[1:] - batch.segment_starts[:-1]
    ends = (batch.contexts + lengths).index_select(0, owner)
    is_kept = layout.written_positions >= ends - capacity
    groups = [_ring_group(group, window, capacity) for group in layout.groups]
    return RingLayout(
        writers=tuple(group for group in groups if group.rows.is_writing),
        canvases=tuple(group for group in groups if not group.rows.is_writing),
        kept_rows=layout.written_rows[is_kept],
        kept_slots=layout.written_slots[is_kept],
        kept_places=layout.written_positions[is_kept] % capacity,
    )


def _ring_group(rows: SegmentGroup, window: int, capacity: int) -> RingGroup:
    cached = min(int(rows.contexts.max()), capacity)
    if not cached and not rows.is_writing and rows.lengths is None:
        return RingGroup(rows, None, None)
    lengths = rows.lengths
    if lengths is None:
        lengths = torch.full_like(rows.contexts, rows.width)
    sizes = (rows.width, cached, rows.is_writing, window)
    # places before position 0 wrap around to rows that are not visible
    before = torch.arange(-cached, 0, device=rows.contexts.device)
    return RingGroup(
        rows=rows,
        places=(rows.contexts.unsqueeze(1) + before) % capacity if cached else None,
        visible=window_visibility(rows.contexts, lengths, *sizes),
    )


def _owners(batch: RoundBatch) -> Tensor:
    """[R] segment of every row."""
    lengths = batch.segment_starts[1:] - batch.segment_starts[:-1]
    return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
