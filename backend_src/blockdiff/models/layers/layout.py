"""Where the rows of a round go: padded segment groups and the way back, computed once per round.

Knows nothing of layers; every layer reads the same layout.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch
from blockdiff.models.layers.row_blocks import BlockCover, number_blocks
from blockdiff_kernels.attention import visibility
from blockdiff_kernels.coreset import RowBlocks
from blockdiff_kernels.rope import rope_angles

# writing segments up to this many rows are not padded to the length of a long prefill chunk
SHORT_ROWS = 64


@dataclass
class SegmentGroup:
    """Segments processed together as [G, T] rows, padded to the longest."""

    is_writing: bool
    segments: int
    width: int
    slots: Tensor  # [G] int64
    contexts: Tensor  # [G] int64
    lengths: Tensor | None  # [G] int64; None: all segments have T rows
    rows: Tensor | None  # [G * T] int64 flat rows, padding repeats the last; None: the whole round
    mask: Tensor | None  # [G, T] bool, False for padding; None: no padding
    visible: Tensor | None  # attention visibility [G, 1, T, cached + T]

    def pad(self, x: Tensor) -> Tensor:
        """Flat rows [R, ...] -> [G, T, ...]."""
        picked = x if self.rows is None else x.index_select(0, self.rows)
        return picked.view(self.segments, self.width, *x.shape[1:])


@dataclass
class RoundLayout:
    """Index maps of one round."""

    groups: tuple[SegmentGroup, ...]  # writing groups first, previews after them
    unpad: Tensor | None  # [R] int64 into the groups' padded rows laid end to end; None: same order
    cos: Tensor  # [R, rotary / 2] float32
    sin: Tensor
    written_rows: Tensor  # [W] flat rows of writing segments
    written_slots: Tensor  # [W]
    written_positions: Tensor  # [W]
    blocks: RowBlocks | None  # for routers that look at whole blocks

    def flatten(self, parts: list[Tensor]) -> Tensor:
        """One [G, T, ...] result per group -> flat rows [R, ...]."""
        flat = [part.reshape(-1, *part.shape[2:]) for part in parts]
        joined = flat[0] if len(flat) == 1 else torch.cat(flat)
        return joined if self.unpad is None else joined.index_select(0, self.unpad)


def build_layout(
    batch: RoundBatch,
    rotary_dim: int,
    theta: float,
    is_block_causal: bool = False,
    cover: BlockCover | None = None,
) -> RoundLayout:
    """Index maps for ``batch``; its segments may come in any order of phases.

    Rows of a writing segment see their own segment causally or, for ``is_block_causal``, all of
    their block and the blocks before it. ``cover``: the rows whose blocks routers ask for.
    """
    starts = batch.segment_starts[:-1]
    lengths = batch.segment_starts[1:] - starts
    writing = batch.phases != int(Phase.PREVIEW)
    chosen = _choose(writing.tolist(), lengths.tolist())
    groups = tuple(_group(batch, starts, lengths, m, is_block_causal) for m in chosen)
    cos, sin = rope_angles(batch.positions, rotary_dim, theta)
    # [R] segment of every row
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=starts.device), lengths)
    written_rows = writing.index_select(0, owner).nonzero().squeeze(1)
    return RoundLayout(
        groups=groups,
        unpad=_way_back(groups, batch.token_ids.shape[0]),
        cos=cos,
        sin=sin,
        written_rows=written_rows,
        written_slots=batch.slots.index_select(0, owner.index_select(0, written_rows)),
        written_positions=batch.positions.index_select(0, written_rows),
        blocks=None if cover is None else number_blocks(batch, owner, cover),
    )


def _choose(writing: list[bool], lengths: list[int]) -> list[list[int]]:
    """Segment numbers of each group that is not empty, in processing order."""
    assert lengths and min(lengths) > 0, "a round needs segments and a segment needs rows"
    everyone = range(len(lengths))
    short = [i for i in everyone if writing[i] and lengths[i] <= SHORT_ROWS]
    long = [i for i in everyone if writing[i] and lengths[i] > SHORT_ROWS]
    previews = [i for i in everyone if not writing[i]]
    return [members for members in (long, short, previews) if members]


def _group(
    batch: RoundBatch, starts: Tensor, lengths: Tensor, members: list[int], is_block_causal: bool
) -> SegmentGroup:
    index = torch.tensor(members, device=starts.device)
    starts, lengths = starts.index_select(0, index), lengths.index_select(0, index)
    contexts, slots = batch.contexts.index_select(0, index), batch.slots.index_select(0, index)
    is_writing = int(batch.phases[members[0]]) != int(Phase.PREVIEW)
    width, cached = int(lengths.max()), int(contexts.max())
    is_padded = width * len(members) != int(lengths.sum())
    steps = torch.arange(width, device=starts.device)
    rows = (starts.unsqueeze(1) + torch.minimum(steps, lengths.unsqueeze(1) - 1)).flatten()
    is_whole = not is_padded and len(members) == batch.slots.shape[0]
    blocks = batch.block_lengths.index_select(0, index) if is_block_causal else None
    is_plain = cached == 0 and not is_padded and not is_writing
    return SegmentGroup(
        is_writing=is_writing,
        segments=len(members),
        width=width,
        slots=slots,
        contexts=contexts,
        lengths=lengths if is_padded else None,
        rows=None if is_whole else rows,
        mask=steps < lengths.unsqueeze(1) if is_padded else None,
        visible=None
        if is_plain
        else visibility(contexts, lengths, width, cached, is_writing, blocks),
    )


def _way_back(groups: tuple[SegmentGroup, ...], total: int) -> Tensor | None:
    """For every flat row, where it lies in the groups' padded rows laid end to end."""
    if len(groups) == 1 and groups[0].rows is None:
        return None
    back = torch.empty(total, dtype=torch.int64, device=groups[0].slots.device)
    offset = 0
    for group in groups:
        assert group.rows is not None
        places = torch.arange(offset, offset + group.rows.shape[0], device=back.device)
        rows = group.rows
        if group.mask is not None:
            keep = group.mask.flatten()
            rows, places = rows[keep], places[keep]
        back[rows] = places
        offset += group.rows.shape[0]
    return back
