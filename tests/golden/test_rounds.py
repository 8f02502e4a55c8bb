"""Rounds that mix requests and phases give what separate rounds give. Run: pytest tests/golden"""

import pytest
import torch
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.hybrid import HybridModel
from blockdiff.models.layers.segments import SHORT_ROWS

from . import cases

SLOTS, CONTEXT = 6, 160


@pytest.fixture(params=cases.HYBRID_CASES)
def model(request: pytest.FixtureRequest) -> HybridModel:
    return cases.model(request.param)


def assert_close(got: Tensor, want: Tensor) -> None:
    """Random 8-layer experts amplify rounding; a real mistake is hundreds of times larger."""
    torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)


def ids(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 120, (count,), generator=generator).tolist()


def segment(phase: Phase, slot: int, context: int, count: int) -> Segment:
    return Segment(phase, slot, context, ids(count, 100 * slot + context), range(count))


# slot 0 prefills, 1 commits with a preview riding along, 2 previews an odd block, 3 prefills a
# second chunk that is longer than short segments are, 4 commits one row, 5 previews from nothing
BEFORE = [
    segment(Phase.PREFILL, 1, 0, 13),
    segment(Phase.PREFILL, 2, 0, 40),
    segment(Phase.PREFILL, 3, 0, 2),
    segment(Phase.PREFILL, 4, 0, 9),
]
MIXED = [
    segment(Phase.PREFILL, 0, 0, 17),
    segment(Phase.PREVIEW, 2, 40, 8),
    segment(Phase.COMMIT, 1, 13, 8),
    segment(Phase.PREFILL, 3, 2, 3 + SHORT_ROWS),
    segment(Phase.PREVIEW, 1, 21, 6),
    segment(Phase.COMMIT, 4, 9, 1),
    segment(Phase.PREVIEW, 5, 0, 3),
]


def run(model: HybridModel, rounds: list[list[Segment]]) -> tuple[list[Tensor], list[Tensor]]:
    """Logits per segment in order, and the caches' tensors at the end."""
    caches = model.new_caches(SLOTS, CONTEXT)
    found: list[Tensor] = []
    for segments in rounds:
        logits = model.forward(RoundBatch.from_segments(segments), caches)
        found += logits.split_with_sizes([len(s.token_ids) for s in segments])
    return found, [caches.states, caches.tails, caches.keys, caches.values]


def test_one_mixed_round_equals_separate_rounds(model: HybridModel) -> None:
    separate, separate_caches = run(model, [[s] for s in BEFORE + MIXED])
    packed, packed_caches = run(model, [BEFORE, MIXED])
    for one, other in zip(packed, separate, strict=True):
        assert_close(one, other)
    for one, other in zip(packed_caches, separate_caches, strict=True):
        assert_close(one, other)


def test_the_order_of_segments_does_not_matter(model: HybridModel) -> None:
    forward, _ = run(model, [BEFORE, MIXED])
    # a riding commit stays listed before its preview
    order = [6, 5, 2, 4, 1, 3, 0]
    turned, _ = run(model, [BEFORE, [MIXED[i] for i in order]])
    for place, index in enumerate(order):
        got, want = turned[len(BEFORE) + place], forward[len(BEFORE) + index]
        assert_close(got, want)


def test_previews_write_nothing(model: HybridModel) -> None:
    _, before = run(model, [BEFORE])
    previews = [segment(Phase.PREVIEW, slot, count, 8) for slot, count in ((1, 13), (2, 40))]
    _, after = run(model, [BEFORE, previews])
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("sizes", [[1] * 30, [7, 16, 7], [29, 1]])
def test_prefill_in_chunks_equals_one_piece(model: HybridModel, sizes: list[int]) -> None:
    tokens = ids(30, 7)
    whole, whole_caches = run(model, [[Segment(Phase.PREFILL, 2, 0, tokens, range(30))]])
    rounds, start = [], 0
    for size in sizes:
        part = tokens[start : start + size]
        rounds.append([Segment(Phase.PREFILL, 2, start, part, range(size))])
        start += size
    chunks, chunk_caches = run(model, rounds)
    assert_close(torch.cat(chunks), whole[0])
    for one, other in zip(chunk_caches, whole_caches, strict=True):
        assert_close(one, other)


def test_a_reset_slot_is_as_new_even_after_nan(model: HybridModel) -> None:
    caches = model.new_caches(2, CONTEXT)
    segments = [segment(Phase.PREFILL, slot, 0, 20) for slot in range(2)]
    model.forward(RoundBatch.from_segments(segments), caches)
    for tensor in (caches.states[:, 0], caches.tails[:, 0]):
        tensor.fill_(float("nan"))
    for tensor in (caches.keys, caches.values):
        tensor[:, :, : caches.room.pages_per_slot] = float("nan")
    kept = caches.states[:, 1].clone()
    caches.prepare(caches.room.renew([0]))
    again = [segment(Phase.PREFILL, 0, 0, 5), segment(Phase.PREVIEW, 1, 20, 8)]
    got = model.forward(RoundBatch.from_segments(again), caches)
    fresh, _ = run(model, [[again[0]]])
    assert got.isfinite().all()
    assert_close(got[:5], fresh[0])
    assert torch.equal(caches.states[:, 1], kept)


def test_a_poisoned_slot_does_not_touch_its_neighbours(model: HybridModel) -> None:
    caches = model.new_caches(2, CONTEXT)
    model.forward(RoundBatch.from_segments([segment(Phase.PREFILL, 0, 0, 9)]), caches)
    caches.states[:, 0] = float("nan")
    mixed = [segment(Phase.PREVIEW, 0, 9, 3), segment(Phase.PREVIEW, 1, 0, 8)]
    got = model.forward(RoundBatch.from_segments(mixed), caches)
    alone, _ = run(model, [[mixed[1]]])
    assert_close(got[3:], alone[0])


def test_logit_rows_choose_and_order_rows(model: HybridModel) -> None:
    tokens = ids(12, 3)
    every, _ = run(model, [[Segment(Phase.PREFILL, 0, 0, tokens, range(12))]])
    batch = RoundBatch.from_segments([Segment(Phase.PREFILL, 0, 0, tokens, [11, 0, 5])])
    got = model.forward(batch, model.new_caches(1, 12))
    assert_close(got, every[0][[11, 0, 5]])
    none = RoundBatch.from_segments([Segment(Phase.PREFILL, 0, 0, tokens)])
    assert model.forward(none, model.new_caches(1, 12)).shape == (0, model.info.vocab_size)


def test_bfloat16_runs_and_stays_near(model: HybridModel) -> None:
    """Routing may flip in bfloat16, so this only asks for the same size of numbers."""
    case = next(c for c in cases.CASES if cases.model(c) is model)
    small = load_model(cases.FIXTURES / case, dtype="bfloat16")
    logits, _ = run(small, [BEFORE, MIXED])
    want, _ = run(model, [BEFORE, MIXED])
    difference = (torch.cat(logits) - torch.cat(want)).abs()
    assert difference.isfinite().all()
    assert difference.median() < 0.5
