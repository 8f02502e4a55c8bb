"""How written rows enter a Gated DeltaNet layer's state line: at once, or along a grid.

Along the grid, a row's result and the states after it are functions of the sequence alone: however
it is cut into segments, every chunk has the same rows. Knows nothing of previews.
"""

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from blockdiff.cache import GridCaches, SlotCaches
from blockdiff.models.layers.layout import SegmentGroup
from blockdiff_kernels.conv import causal_conv
from blockdiff_kernels.gated_delta import GRID_ROWS, gated_delta_on_grid

if TYPE_CHECKING:
    from blockdiff.models.layers.gated_delta import GatedDeltaMixer


class Committer(Protocol):
    """Writes a group into its slots' lines."""

    def __call__(
        self, mixer: "GatedDeltaMixer", rows: Tensor, group: SegmentGroup, caches: SlotCaches
    ) -> Tensor:
        """Projected rows [G, T, .] -> mixed [G, T, Hv, dv]; ``caches`` are written in place."""
        ...


def commit_at_once(
    mixer: "GatedDeltaMixer", rows: Tensor, group: SegmentGroup, caches: SlotCaches
) -> Tensor:
    """See ``Committer``: each segment is cut into chunks from its own first row on."""
    mixed, state, tail = mixer.scan(rows, group, caches)
    keep(caches.layer_states[mixer.index], state, group)
    keep(caches.layer_tails[mixer.index], tail, group)
    return mixed


def commit_on_grid(
    mixer: "GatedDeltaMixer", rows: Tensor, group: SegmentGroup, caches: SlotCaches
) -> Tensor:
    """See ``Committer``: chunks of the grid from position 0 on, begun ones computed again."""
    assert isinstance(caches, GridCaches), "caches come from new_caches"
    channels, _, *gates = mixer.split
    taps = mixer.weights.conv.shape[1]
    grid, index = group.on_grid(taps), mixer.index
    segments, window = grid.mask.shape
    new = torch.cat((rows[..., :channels], rows[..., -sum(gates) :]), dim=2)
    old = caches.layer_recents[index].index_select(0, group.slots)
    joined = torch.cat((old, new), dim=1).flatten(0, 1)
    read = joined.index_select(0, grid.window).view(segments, taps - 1 + window, -1)
    u, b, a = read.split_with_sizes((channels, *gates), dim=2)
    convolved, _ = causal_conv(
        u[:, taps - 1 :], u[:, : taps - 1], mixer.weights.conv, mix=mixer.numerics.depthwise
    )
    inputs = (*mixer.heads(convolved), *mixer.gates(a[:, taps - 1 :], b[:, taps - 1 :]))
    anchor = caches.layer_anchors[index].index_select(0, group.slots)
    mixed, state, anchor = gated_delta_on_grid(*inputs, anchor, grid.mask, grid.whole, GRID_ROWS)
    recent = joined.index_select(0, grid.kept).view(segments, -1, joined.shape[1])
    keep(caches.layer_states[index], state, group)
    keep(caches.layer_tails[index], recent[:, 1 - taps :, :channels], group)
    keep(caches.layer_anchors[index], anchor, group)
    keep(caches.layer_recents[index], recent, group)
    own = mixed.reshape(segments * window, *mixed.shape[2:]).index_select(0, grid.own)
    return own.view(segments, -1, *own.shape[1:])


def keep(store: Tensor, new: Tensor, group: SegmentGroup) -> None:
    """Write what the group's slots now have to their lines [lines, ...], and to snapshots of it."""
    new = new.to(store.dtype)
    store.index_copy_(0, group.slots, new)
    if group.snapshot_lines is not None:
        assert group.snapshot_members is not None, "they come together"
        copies = new.index_select(0, group.snapshot_members)
        store.index_copy_(0, group.snapshot_lines, copies)
