"""Flat segments name the same rows as padded groups. Run: pytest tests/models"""

import numpy as np
import torch

from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.layers.flat import NOT_WRITTEN
from blockdiff.models.layers.host_layout import LayoutRules, make_host_layout
from blockdiff.models.layers.layout import Rotary, RoundLayout, make_layout
from blockdiff.models.numerics import PLAIN
from blockdiff.pages import make_room
from blockdiff.transfer import to_device

CPU = torch.device("cpu")


def _batch() -> RoundBatch:
    return RoundBatch.from_segments(
        [
            Segment(Phase.PREFILL, 0, 5, list(range(70))),
            Segment(Phase.COMMIT, 1, 3, [1, 2, 3, 4]),
            Segment(Phase.COMMIT, 1, 7, [5, 6]),
            Segment(Phase.PREVIEW, 1, 9, [0, 0, 0]),
            Segment(Phase.PREVIEW, 2, 0, [0, 0, 0, 0]),
        ],
        snapshots=np.array([-1, 5, -1, -1, -1]),
    )


def _layout(batch: RoundBatch, is_flat: bool) -> RoundLayout:
    host = make_host_layout(batch, make_room(4, 128, 16, None), LayoutRules(is_flat=is_flat))
    return make_layout(host, to_device(host.arrays, CPU), Rotary(4, 100.0), PLAIN)


def test_flat_groups_hold_the_rows_of_padded_ones() -> None:
    batch = _batch()
    layout = _layout(batch, is_flat=True)
    assert _layout(batch, is_flat=False).groups[0].flat is None
    seen = []
    for group in layout.groups:
        assert group.flat is not None
        own = group.flat.segments
        for start, length, padded in zip(
            own.starts.tolist(), own.lengths.tolist(), group.host.rows, strict=True
        ):
            assert padded[:length].tolist() == list(range(start, start + length))
            seen += padded[:length].tolist()
        assert own.longest == own.lengths.max()
        assert torch.equal(own.slots.long(), group.slots)
        assert torch.equal(own.contexts.long(), group.contexts)
    assert sorted(seen) == list(range(len(batch.token_ids)))
    copies = [group.flat.snapshots.tolist() for group in layout.groups if group.flat is not None]
    assert sorted(line for own in copies for line in own) == [-1, -1, -1, -1, 5]
    assert layout.written_map is not None
    written = layout.written_map[layout.written_rows]
    assert torch.equal(written, layout.written_places)
    assert (layout.written_map == NOT_WRITTEN).sum() == 7
