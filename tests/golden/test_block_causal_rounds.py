"""Rounds of block-causal models: mixed, chunked and riding rows. Run: pytest tests/golden"""

import pytest
import torch
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.core import Phase
from blockdiff.engine import Engine, EngineConfig
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.trunk import LanguageModel

from . import cases

SLOTS, CONTEXT = 5, 256


@pytest.fixture(params=cases.BLOCK_CAUSAL_CASES)
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return cases.model(request.param)


def assert_close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)


def segment(phase: Phase, slot: int, context: int, count: int, block: int) -> Segment:
    generator = torch.Generator().manual_seed(100 * slot + context)
    ids = torch.randint(1, 120, (count,), generator=generator).tolist()
    return Segment(phase, slot, context, ids, range(count), block)


def rounds(block: int) -> tuple[list[Segment], list[Segment]]:
    """Prompts; then a prefill, a commit with a preview riding along, and a second chunk. Slot 4
    has a block length of its own."""
    before = [
        segment(Phase.PREFILL, 1, 0, 2 * block, block),
        segment(Phase.PREFILL, 3, 0, block, block),
        segment(Phase.PREFILL, 4, 0, 4, 2),
    ]
    mixed = [
        segment(Phase.PREFILL, 0, 0, 3 * block, block),
        segment(Phase.COMMIT, 1, 2 * block, block, block),
        segment(Phase.PREFILL, 3, block, 2 * block, block),
        segment(Phase.COMMIT, 4, 4, 2, 2),
        segment(Phase.PREVIEW, 1, 3 * block, block, block),
        segment(Phase.PREVIEW, 2, 0, block, block),
        segment(Phase.PREVIEW, 4, 6, 2, 2),
    ]
    return before, mixed


def run(model: LanguageModel, batches: list[list[Segment]]) -> tuple[list[Tensor], list[Tensor]]:
    """Logits per segment in order, and the caches' tensors at the end."""
    caches = model.new_caches(SLOTS, CONTEXT)
    found: list[Tensor] = []
    for segments in batches:
        logits = model.forward(RoundBatch.from_segments(segments), caches)
        found += logits.split_with_sizes([len(s.token_ids) for s in segments])
    return found, [caches.keys, caches.values]


def test_one_mixed_round_equals_separate_rounds(model: LanguageModel) -> None:
    before, mixed = rounds(model.info.block_length)
    separate, separate_caches = run(model, [[s] for s in before + mixed])
    packed, packed_caches = run(model, [before, mixed])
    for one, other in zip(packed + packed_caches, separate + separate_caches, strict=True):
        assert_close(one, other)


def test_prefill_by_blocks_equals_one_piece(model: LanguageModel) -> None:
    block = model.info.block_length
    whole = segment(Phase.PREFILL, 2, 0, 4 * block, block)
    want, want_caches = run(model, [[whole]])
    pieces, start = [], 0
    for count in (block, 2 * block, block):
        ids = whole.token_ids[start : start + count]
        pieces.append([Segment(Phase.PREFILL, 2, start, ids, range(count), block)])
        start += count
    got, got_caches = run(model, pieces)
    assert_close(torch.cat(got), want[0])
    for one, other in zip(got_caches, want_caches, strict=True):
        assert_close(one, other)


def test_a_committed_block_equals_the_preview_of_its_final_tokens(model: LanguageModel) -> None:
    block = model.info.block_length
    prompt = segment(Phase.PREFILL, 1, 0, block, block)
    rows = segment(Phase.COMMIT, 1, block, block, block)
    shown = Segment(Phase.PREVIEW, 1, block, rows.token_ids, range(block), block)
    committed, _ = run(model, [[prompt], [rows]])
    previewed, _ = run(model, [[prompt], [shown]])
    assert_close(committed[1], previewed[1])


def test_previews_write_nothing_and_a_reset_slot_is_as_new(model: LanguageModel) -> None:
    block = model.info.block_length
    caches = model.new_caches(1, CONTEXT)
    prompt = segment(Phase.PREFILL, 0, 0, block, block)
    first = model.forward(RoundBatch.from_segments([prompt]), caches)
    kept = caches.keys.clone()
    canvas = segment(Phase.PREVIEW, 0, block, block, block)
    model.forward(RoundBatch.from_segments([canvas]), caches)
    assert torch.equal(caches.keys, kept)
    caches.keys.fill_(float("nan"))
    caches.prepare(caches.room.renew([0]))
    assert_close(model.forward(RoundBatch.from_segments([prompt]), caches), first)


def test_warm_up_runs(model: LanguageModel) -> None:
    engine = Engine(model, EngineConfig(max_slots=2, max_context=CONTEXT, prefill_token_budget=64))
    engine.warm_up()
    assert not engine.has_work


def test_bfloat16_runs_and_stays_near(model: LanguageModel) -> None:
    """Routing may flip in bfloat16, so this only asks for the same size of numbers."""
    case = next(c for c in cases.CASES if cases.model(c) is model)
    batches = list(rounds(model.info.block_length))
    logits, _ = run(load_model(cases.FIXTURES / case, dtype="bfloat16"), batches)
    want, _ = run(model, batches)
    difference = (torch.cat(logits) - torch.cat(want)).abs()
    assert difference.isfinite().all()
    assert difference.median() < 0.5
