"""Where the rows of a round lie in pages: what is read and what is written, on the host.

Knows nothing of layers or devices.
"""

import numpy as np

from blockdiff.models.base import RoundBatch
from blockdiff.models.layers.segments import GroupRows
from blockdiff.pages import CacheRoom, Ints, count_pages, round_up


def page_table(batch: RoundBatch, room: CacheRoom) -> Ints:
    """[S, P] pages of every segment's slot in order of position, as many as the round needs."""
    ends = batch.contexts + batch.lengths
    written = ends[batch.is_writing]
    assert not len(written) or written.max() <= room.max_context, "a commit runs past the cache"
    needed = count_pages(int(ends.max()), room.pool.page_length)
    if batch.pages is None:
        return room.own_pages(batch.slots, needed)
    # a preview may run past what its slot will ever commit
    longest = int(max(written.max(initial=1), batch.contexts.max()))
    assert batch.pages.shape[1] >= count_pages(longest, room.pool.page_length), "pages are missing"
    return batch.pages


def read_pages(
    table: Ints, contexts: Ints, group: GroupRows, page_length: int, count: int | None = None
) -> Ints | None:
    """[G, n] pages of the cached rows that ``group`` reads; None: there are none.

    n is ``count`` or else a bucket, so that shapes repeat. What a segment does not need repeats
    its first page: it is masked, and whatever it holds is the segment's own.
    """
    contexts = contexts[group.members]
    if count is None:
        count = round_up(count_pages(int(contexts.max()), page_length))
    if not count:
        return None
    columns = np.arange(count)
    own = table[group.members]
    is_needed = columns * page_length < contexts[:, None]
    pages: Ints = np.where(is_needed, own[:, np.minimum(columns, own.shape[1] - 1)], own[:, :1])
    return pages


def written_places(batch: RoundBatch, table: Ints, page_length: int) -> tuple[Ints, Ints]:
    """Flat rows [W] of writing segments and where each lies in pages laid end to end."""
    owners = batch.owners
    rows = np.flatnonzero(batch.is_writing[owners])
    page, place = np.divmod(batch.positions[rows], page_length)
    return rows, table[owners[rows], page] * page_length + place
