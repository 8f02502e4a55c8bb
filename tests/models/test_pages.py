"""Pages and state lines: whichever they are, results are the same. Run: pytest tests/models"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from blockdiff.checkpoint import meta_model
from blockdiff.config import parse_config
from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.trunk import LanguageModel
from blockdiff.pages import CachePool, CacheWork, Ints

from .families import FAMILIES, make_model

BLOCK, PAGE, SLOTS, CONTEXT = 8, 16, 3, 96
POOL = CachePool(pages=40, page_length=PAGE, snapshots=2)


@pytest.fixture(params=FAMILIES, scope="module")
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LanguageModel:
    return make_model(request.param, tmp_path_factory.mktemp("model"))


def segment(phase: Phase, slot: int, context: int, count: int) -> Segment:
    """Rows whose tokens depend on their positions only."""
    ids = [(7 * position) % 29 + 1 for position in range(context, context + count)]
    return Segment(phase, slot, context, ids, range(count), BLOCK)


def prefill(slot: int, context: int, count: int) -> Segment:
    return segment(Phase.PREFILL, slot, context, count)


def preview(slot: int, context: int) -> Segment:
    return segment(Phase.PREVIEW, slot, context, BLOCK)


ROUNDS = [
    [prefill(0, 0, 40), prefill(1, 0, 8), preview(2, 0)],
    # a chunk that is not padded to the long one, a commit with its preview, and a preview alone
    [
        prefill(2, 0, 72),
        segment(Phase.COMMIT, 1, 8, BLOCK),
        preview(1, 16),
        preview(0, 40),
    ],
]


def tables(counts: tuple[int, ...] = (3, 2, 5)) -> Ints:
    """[SLOTS, 6] pages in no order: ``counts`` of the slots' own, then one that is nobody's."""
    pages = np.random.default_rng(5).permutation(POOL.pages)
    found = np.full((SLOTS, 6), pages[-1])
    for slot, count in enumerate(counts):
        found[slot, :count] = pages[6 * slot : 6 * slot + count]
    return found


def run(model: LanguageModel, caches: Any, segments: list[Segment], **more: Any) -> Tensor:
    """Logits of all rows."""
    return model.forward(RoundBatch.from_segments(segments, **more), caches)


def pooled(model: LanguageModel, table: Ints) -> Any:
    """Caches of a pool where all that nobody has cleared is nan."""
    caches = model.new_caches(SLOTS, CONTEXT, POOL)
    for store in (*caches.page_stores, *caches.state_stores):
        store.fill_(float("nan"))
    own = table[table != tables()[-1, -1]]
    caches.prepare(CacheWork(cleared=own, reset_slots=np.arange(SLOTS)))
    return caches


def lay(table: Ints, segments: list[Segment]) -> Ints:
    return table[[s.slot for s in segments]]


def test_any_pages_give_the_very_same_rows(model: LanguageModel) -> None:
    """Even where the tables' ends name a page full of nan."""
    table, own = tables(), model.new_caches(SLOTS, CONTEXT)
    caches = pooled(model, table)
    for segments in ROUNDS:
        want = run(model, own, segments)
        assert torch.equal(run(model, caches, segments, pages=lay(table, segments)), want)
    for slot, length in enumerate((40, 16, 72)):
        for layer in range(len(own.layer_keys)):
            pairs = zip(
                caches.committed(layer, slot, length, table[slot]),
                own.committed(layer, slot, length),
                strict=True,
            )
            assert all(torch.equal(one, other) for one, other in pairs)


def test_longer_pages_change_nothing(model: LanguageModel) -> None:
    own = model.new_caches(SLOTS, CONTEXT)
    caches = model.new_caches(SLOTS, CONTEXT, CachePool(12, 3 * BLOCK))
    table = np.arange(12)[::-1].reshape(SLOTS, 4)
    for segments in ROUNDS:
        got = run(model, caches, segments, pages=lay(table, segments))
        torch.testing.assert_close(got, run(model, own, segments), atol=1e-4, rtol=1e-4)


def test_segments_of_one_slot_in_one_round_run_one_after_the_other(model: LanguageModel) -> None:
    whole, cut = model.new_caches(SLOTS, CONTEXT), pooled(model, tables())
    others = [preview(1, 0), prefill(2, 0, 8)]
    want = run(model, whole, [prefill(0, 0, 40), preview(0, 40), *others])
    segments = [prefill(0, 0, 16), prefill(0, 16, 8), prefill(0, 24, 16), preview(0, 40), *others]
    snapshots = np.array([3, -1, 4, -1, -1, -1])
    got = run(model, cut, segments, pages=lay(tables(), segments), snapshots=snapshots)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    # what the slot is left with, and what it had on its way
    for line, slot in ((0, 0), (4, 0)):
        for one, other in zip(cut.state_stores, whole.state_stores, strict=True):
            torch.testing.assert_close(one[:, line], other[:, slot], atol=1e-4, rtol=1e-4)
    fresh = model.new_caches(SLOTS, CONTEXT)
    run(model, fresh, [prefill(0, 0, 16)])
    for one, other in zip(cut.state_stores, fresh.state_stores, strict=True):
        torch.testing.assert_close(one[:, 3], other[:, 0], atol=1e-4, rtol=1e-4)


def test_a_snapshot_and_copied_pages_continue_bit_by_bit(model: LanguageModel) -> None:
    """24 tokens are one page, which both slots read, and half a page, which is copied."""
    table = tables((3, 3, 3))
    caches = pooled(model, table)
    first, then = [prefill(0, 0, 24)], [prefill(0, 24, 16), preview(0, 40)]
    run(model, caches, first, pages=lay(table, first), snapshots=np.array([4]))
    want = run(model, caches, then, pages=lay(table, then))
    table[1, 0] = table[0, 0]
    # slot 0 has overwritten the rest of its second page, which must not matter
    work = CacheWork(
        copy_from=table[0, 1:2],
        copy_to=table[1, 1:2],
        restore_from=np.array([4]),
        restore_to=np.array([1]),
    )
    caches.prepare(work)
    again = [Segment(s.phase, 1, s.context, s.token_ids, s.logit_rows, BLOCK) for s in then]
    assert torch.equal(run(model, caches, again, pages=lay(table, again)), want)


def test_work_is_done_in_its_order(model: LanguageModel) -> None:
    caches = model.new_caches(SLOTS, CONTEXT, POOL)
    for store in caches.page_stores:
        numbers = torch.arange(POOL.pages, dtype=store.dtype)
        store.copy_(numbers.view(-1, 1, 1).expand_as(store))
    for store in caches.state_stores:
        numbers = torch.arange(SLOTS + POOL.snapshots, dtype=store.dtype)
        store.copy_(numbers.view(-1, *[1] * (store.ndim - 2)).expand_as(store))
    caches.prepare(
        CacheWork(
            copy_from=np.array([7, 8]),
            copy_to=np.array([8, 9]),
            cleared=np.array([7, 20]),
            reset_slots=np.array([0, 1]),
            restore_from=np.array([4, 0]),
            restore_to=np.array([0, 3]),
        )
    )
    for store in caches.page_stores:
        pages = store.movedim(-3, 0).flatten(1).amax(1)
        assert pages[[7, 8, 9, 10, 20]].tolist() == [0, 7, 8, 10, 0]
    for store in caches.state_stores:
        assert store.transpose(0, 1).flatten(1).amax(1).tolist() == [4, 0, 2, 0, 4]


def test_sizes_are_what_is_allocated(model: LanguageModel) -> None:
    caches = model.new_caches(SLOTS, CONTEXT, POOL)
    sizes = model.cache_sizes(PAGE, CONTEXT)
    pages = sum(store.numel() * store.element_size() for store in caches.page_stores)
    lines = sum(store.numel() * store.element_size() for store in caches.state_stores)
    assert pages == POOL.pages * sizes.page_bytes
    assert lines == (SLOTS + POOL.snapshots) * sizes.state_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_a_round_asks_nothing_of_the_device(family: str) -> None:
    """Tensors of the meta device have no contents to wait for."""
    model = meta_model(parse_config(FAMILIES[family]))
    caches = model.new_caches(SLOTS, CONTEXT, POOL)
    lines = np.array([3])
    caches.prepare(CacheWork(lines, lines, lines, np.array([0]), lines, lines))
    segments = [prefill(0, 0, 16), prefill(0, 16, 8), preview(0, 24)]
    segments += [segment(Phase.COMMIT, 1, 24, BLOCK), preview(2, 0)]
    more = {"pages": lay(tables(), segments), "snapshots": np.array([3, -1, -1, 4, -1])}
    assert run(model, caches, segments, **more).shape == (48, model.info.vocab_size)
