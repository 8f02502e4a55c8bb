"""Numbers of pages: buckets, lengths and whose they are. Run: pytest tests/unit/test_pages.py"""

import numpy as np

from blockdiff.pages import CachePool, count_pages, default_page_length, make_room, round_up


def test_buckets_are_few_and_never_much_too_large() -> None:
    sizes = [round_up(count) for count in range(8193)]
    assert sizes[:17] == list(range(17))
    for count, size in enumerate(sizes):
        assert count <= size <= count + count // 8
        assert round_up(size) == size
    assert sizes == sorted(sizes) and len(set(sizes)) < 100


def test_pages_hold_whole_blocks_and_at_least_16_positions() -> None:
    assert [default_page_length(block) for block in (1, 4, 8, 12, 16, 17, 32, 256)] == [
        *(16, 16, 16, 24, 16, 17, 32, 256)
    ]
    assert [count_pages(tokens, 16) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_slots_without_a_pool_have_pages_of_their_own() -> None:
    room = make_room(3, 40, 8, None)
    assert (room.pool, room.pages_per_slot, room.lines) == (CachePool(9, 16), 3, 3)
    # past the last one it stays there
    assert room.own_pages(np.array([2, 0]), 4).tolist() == [[6, 7, 8, 8], [0, 1, 2, 2]]
    work = room.renew([1])
    assert work.cleared.tolist() == [3, 4, 5] and work.reset_slots.tolist() == [1]
    assert make_room(3, 40, 8, CachePool(5, 16, 2)).lines == 5
