"""The index maps of a round as arrays, before a device has them.

Says how many rows and segments there are and where they lie, so that what runs on the device needs
no more than the arrays' copies. Knows nothing of layers or devices.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from blockdiff.models.base import RoundBatch
from blockdiff.models.layers.filled_maps import filled_maps
from blockdiff.models.layers.flat import flat_arrays, written_map
from blockdiff.models.layers.page_maps import page_table, read_pages, written_places
from blockdiff.models.layers.row_blocks import BlockCover, number_blocks
from blockdiff.models.layers.segments import (
    GroupRows,
    group_segments,
    shaped_groups,
    way_back,
)
from blockdiff.models.round_shape import RoundShape, fill_up
from blockdiff.pages import CacheRoom, Ints
from blockdiff.transfer import Array


class LayoutRules(NamedTuple):
    """What a model asks of its rounds' layouts."""

    is_block_causal: bool = False
    """Writing rows see all of their block and the blocks before it, not only earlier rows."""
    cover: BlockCover | None = None
    """The rows whose blocks routers ask for."""
    separates_blocks: bool = False
    """See ``group_segments``."""
    is_flat: bool = False
    """Whether any op goes by flat rows."""


@dataclass(frozen=True, eq=False)
class HostLayout:
    """A round's arrays by name, and what is known of them without reading them."""

    batch: RoundBatch
    """As it was laid out, fillers included."""
    arrays: dict[str, Array]
    groups: tuple[GroupRows, ...]
    page_length: int
    block_count: int | None
    """Blocks that rows are numbered by; None: routers do not ask."""


def make_host_layout(
    batch: RoundBatch, room: CacheRoom, rules: LayoutRules, shape: RoundShape | None = None
) -> HostLayout:
    """Index maps for ``batch``; its segments may come in any order of phases.

    ``shape``: batch and maps are filled up to it; writing segments come first.
    """
    if shape is None:
        return _lay_out(batch, room, rules, group_segments(batch, rules.separates_blocks))
    filled = fill_up(batch, shape, room.num_slots)
    host = _lay_out(filled, room, rules, shaped_groups(filled, shape), shape.pages)
    counts = {
        "row_count": np.array([len(batch.token_ids)], np.int32),
        "logit_count": np.array([len(batch.logit_rows)], np.int32),
    }
    arrays = host.arrays | filled_maps(host.arrays, filled, shape) | counts
    return replace(host, arrays=arrays, block_count=host.block_count and shape.blocks)


def _lay_out(
    batch: RoundBatch,
    room: CacheRoom,
    rules: LayoutRules,
    groups: list[GroupRows],
    page_count: int | None = None,
) -> HostLayout:
    page_length, table = room.pool.page_length, page_table(batch, room)
    names = ("token_ids", "positions", "logit_rows")
    arrays: dict[str, Array] = {name: getattr(batch, name) for name in names}
    back, count = way_back(groups, len(batch.token_ids)), None
    if back is not None:
        arrays["unpad"] = back
    written = written_places(batch, table, page_length)
    arrays["written_rows"], arrays["written_places"] = written
    if rules.is_flat:
        arrays["written_map"] = written_map(*written, len(batch.token_ids))
    if rules.cover is not None:
        blocks = number_blocks(batch, rules.cover)
        arrays["blocks"], count = blocks.numbers, blocks.count
    for number, group in enumerate(groups):
        pages = read_pages(table, batch.contexts, group, page_length, page_count)
        own = _group_arrays(batch, group, pages, rules.is_block_causal)
        if rules.is_flat:
            own |= flat_arrays(batch, group, pages)
        arrays |= {f"{number}.{name}": array for name, array in own.items()}
    return HostLayout(batch, arrays, tuple(groups), page_length, count)


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
