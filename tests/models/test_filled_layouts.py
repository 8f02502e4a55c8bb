"""All rounds of one shape have arrays of the same names, lengths and types.

Run: pytest tests/models
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.layers.canvas_rows import make_canvas_host_layout
from blockdiff.models.layers.host_layout import LayoutRules, make_host_layout
from blockdiff.models.layers.row_blocks import BlockCover
from blockdiff.models.round_shape import RoundShape
from blockdiff.pages import CachePool, make_room

SLOTS, BLOCK, PAGE, CONTEXT = 5, 4, 8, 64
ROOM = make_room(SLOTS, CONTEXT, BLOCK, CachePool(50, PAGE, 3))
LENGTHS = st.integers(1, BLOCK)


@st.composite
def rounds(draw: st.DrawFn, has_writing: bool, has_previews: bool) -> RoundBatch:
    """Each slot writes once at most and has one preview at most."""
    segments, snapshots = [], []
    slots = st.lists(st.integers(0, SLOTS - 1), min_size=1, unique=True)
    lines = st.sampled_from([-1, SLOTS, SLOTS + 1, SLOTS + 2])
    contexts = [draw(st.integers(0, CONTEXT - 2 * BLOCK)) for _ in range(SLOTS)]
    for slot in draw(slots) if has_writing else ():
        count = draw(LENGTHS)
        decided = range(count)[: draw(st.integers(0, count))]
        segments.append(Segment(Phase.COMMIT, slot, contexts[slot], [1] * count, decided, BLOCK))
        snapshots.append(draw(lines))
        contexts[slot] += count
    for slot in draw(slots) if has_previews else ():
        count = draw(LENGTHS)
        decided = range(count)[: draw(st.integers(0, count))]
        segments.append(Segment(Phase.PREVIEW, slot, contexts[slot], [1] * count, decided, BLOCK))
        snapshots.append(-1)
    pages = np.array([[9 * own.slot + place for place in range(8)] for own in segments])
    return RoundBatch.from_segments(segments, pages, np.array(snapshots))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([(True, True), (True, False), (False, True)]), st.booleans())
def test_a_shape_says_all_of_its_arrays(
    data: st.DataObject, kinds: tuple[bool, bool], is_tight: bool
) -> None:
    batches = [data.draw(rounds(*kinds)) for _ in range(2)]
    needs = [RoundShape.of(batch, PAGE) for batch in batches]
    spare = 0 if is_tight else 3
    shape = RoundShape(
        rows=max(own.rows for own in needs) + spare,
        writing=SLOTS * kinds[0],
        previews=SLOTS * kinds[1],
        width=BLOCK,
        logit_rows=max(own.logit_rows for own in needs) + spare,
        pages=max(own.pages for own in needs) + spare,
    )
    assert all(shape.holds(own) for own in needs)
    for rules in (
        LayoutRules(is_block_causal=True, cover=BlockCover.ALL),
        LayoutRules(cover=BlockCover.PREVIEWS, is_flat=True),
    ):
        found = []
        for batch in batches:
            host = make_host_layout(batch, ROOM, rules, shape)
            canvas = make_canvas_host_layout(host, 16, shape)
            assert canvas.block_count is not None
            assert canvas.arrays["blocks"].max() < canvas.block_count or not canvas.block_count
            assert canvas.arrays["0.slots"].max() < SLOTS
            writing = canvas.arrays["0.slots"] if kinds[0] else np.zeros(0)
            assert len(np.unique(writing)) == len(writing), "two lines are written at once"
            found.append({n: (own.shape, own.dtype) for n, own in canvas.arrays.items()})
        assert found[0] == found[1]
