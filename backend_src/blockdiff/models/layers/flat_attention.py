"""Attention layers over the flat rows of a round: heads turned and written, then attended in place.

The plain twin pads groups of segments: ``attention.attend``. Knows nothing of projections, or of
norms around it.
"""

from torch import Tensor

from blockdiff.models.layers.canvas_rows import RingLayout
from blockdiff.models.layers.flat import FlatGroup
from blockdiff.models.layers.layout import RoundLayout, SegmentGroup
from blockdiff_kernels.attention import Past, Reach, block_attention
from blockdiff_kernels.rope import HeadNorm, Heads, Store, turn_and_write, write_rows


def attend_flat(
    projected: Tensor,
    norm: HeadNorm,
    heads: Heads,
    layout: RoundLayout,
    stores: tuple[Tensor, Tensor],
    *,
    gate: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Projected rows [R, N, D] -> [R, Hq, D]; rows of no segment are left as they come.

    stores: a layer's keys and values in pages, written before anything is read, so that a preview
    sees the commit that rides along with it. gate [R, Hq, D] multiplies by its sigmoid.
    """
    store = None
    if any(group.is_writing for group in layout.groups):
        assert layout.written_map is not None, "the layout is flat"
        store = Store(*stores, layout.written_map)
    turned, value = turn_and_write(projected, norm, (layout.cos, layout.sin), heads, store)
    query, key = turned.split_with_sizes((heads.query, heads.kv), dim=1)
    out = query.new_empty(query.shape)
    for group in layout.groups:
        flat = _flat(group)
        # an empty table says that nothing is cached
        pages = flat.segments.slots.unsqueeze(1)[:, :0] if flat.pages is None else flat.pages
        past = Past(*stores, pages)
        reach = Reach(group.is_writing, flat.block_lengths)
        where = (past, flat.segments, reach, out)
        block_attention(query, key, value, *where, gate=gate, scale=scale)
    return out


def attend_rings(
    projected: Tensor,
    norm: HeadNorm,
    heads: Heads,
    layout: RoundLayout,
    rings: RingLayout,
    stores: tuple[Tensor, Tensor],
    scale: float,
) -> Tensor:
    """As ``attend_flat`` over rings [Hkv, lines, places, D], in the order of ``RingLayout``."""
    turned, value = turn_and_write(projected, norm, (layout.cos, layout.sin), heads)
    query, key = turned.split_with_sizes((heads.query, heads.kv), dim=1)
    out, past = query.new_empty(query.shape), Past(*stores, None)

    def attend(group: SegmentGroup) -> None:
        reach = Reach(group.is_writing, window=rings.window)
        block_attention(query, key, value, past, _flat(group).segments, reach, out, scale=scale)

    for wave in rings.waves:
        # a ring may lose what its own rows still see
        for own in wave.groups:
            attend(own.rows)
        assert wave.kept_map is not None, "the layout is flat"
        write_rows(key, value, Store(*stores, wave.kept_map))
        wave.copy_snapshots(stores)
    for own in rings.canvases:
        attend(own.rows)
    return out


def _flat(group: SegmentGroup) -> FlatGroup:
    assert group.flat is not None, "the layout is flat"
    return group.flat
