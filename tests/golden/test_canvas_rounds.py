"""Rounds of canvas decoders: mixed, chunked and riding rows, rings. Run: pytest tests/golden"""

import pytest
import torch
from torch import Tensor

from blockdiff.cache import CanvasCaches
from blockdiff.checkpoint import load_model
from blockdiff.core import Phase
from blockdiff.engine import Engine, EngineConfig
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.diffusion_gemma import DiffusionGemmaModel

from . import cases

SLOTS, CONTEXT = 6, 256


@pytest.fixture(params=cases.CANVAS_CASES)
def model(request: pytest.FixtureRequest) -> DiffusionGemmaModel:
    found = cases.model(request.param)
    assert isinstance(found, DiffusionGemmaModel)
    return found


def assert_close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)


def ids(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 120, (count,), generator=generator).tolist()


def segment(phase: Phase, slot: int, context: int, count: int) -> Segment:
    return Segment(phase, slot, context, ids(count, 100 * slot + context), range(count))


# windows are 10 and 12 positions, so that prompts, chunks and commits are on either side of them
BEFORE = [
    segment(Phase.PREFILL, 1, 0, 15),
    segment(Phase.PREFILL, 2, 0, 80),
    segment(Phase.PREFILL, 3, 0, 3),
    segment(Phase.PREFILL, 4, 0, 1),
]
MIXED = [
    segment(Phase.PREFILL, 0, 0, 20),
    segment(Phase.COMMIT, 1, 15, 8),
    segment(Phase.PREFILL, 3, 3, 70),
    segment(Phase.COMMIT, 4, 1, 8),
    segment(Phase.PREVIEW, 1, 23, 8),
    segment(Phase.PREVIEW, 2, 80, 8),
    segment(Phase.PREVIEW, 5, 0, 8),
    segment(Phase.PREVIEW, 4, 9, 8),
]


def run(
    model: DiffusionGemmaModel, rounds: list[list[Segment]], context: int = CONTEXT
) -> tuple[list[Tensor], CanvasCaches]:
    """Logits per segment in order, and the caches at the end; slot 2's canvas has a signal."""
    caches = model.new_caches(SLOTS, context)
    generator = torch.Generator().manual_seed(1)
    caches.signals[2] = torch.randn(caches.signals[2].shape, generator=generator)
    found: list[Tensor] = []
    for segments in rounds:
        logits = model.forward(RoundBatch.from_segments(segments), caches)
        found += logits.split_with_sizes([len(s.token_ids) for s in segments])
    return found, caches


def kept(caches: CanvasCaches, lengths: list[int]) -> list[Tensor]:
    """All that is committed, layer by layer and slot by slot."""
    layers = range(len(caches.layer_keys))
    every = [(layer, slot, length) for slot, length in enumerate(lengths) for layer in layers]
    return [x for place in every for x in caches.committed(*place)]


def test_one_mixed_round_equals_separate_rounds(model: DiffusionGemmaModel) -> None:
    separate, separate_caches = run(model, [[s] for s in BEFORE + MIXED])
    packed, packed_caches = run(model, [BEFORE, MIXED])
    lengths = [20, 23, 80, 73, 9, 0]
    packed += kept(packed_caches, lengths)
    separate += kept(separate_caches, lengths)
    for one, other in zip(packed, separate, strict=True):
        assert_close(one, other)


def test_the_order_of_segments_does_not_matter(model: DiffusionGemmaModel) -> None:
    forward, _ = run(model, [BEFORE, MIXED])
    # a riding commit stays listed before its preview
    order = [5, 3, 1, 7, 6, 4, 2, 0]
    turned, _ = run(model, [BEFORE, [MIXED[i] for i in order]])
    for place, index in enumerate(order):
        assert_close(turned[len(BEFORE) + place], forward[len(BEFORE) + index])


@pytest.mark.parametrize("sizes", [[1] * 40, [7, 16, 17], [39, 1], [3, 30, 7]])
def test_prefill_in_chunks_equals_one_piece(model: DiffusionGemmaModel, sizes: list[int]) -> None:
    tokens = ids(40, 7)
    whole, whole_caches = run(model, [[Segment(Phase.PREFILL, 1, 0, tokens, range(40))]])
    rounds, start = [], 0
    for size in sizes:
        part = tokens[start : start + size]
        rounds.append([Segment(Phase.PREFILL, 1, start, part, range(size))])
        start += size
    chunks, chunk_caches = run(model, rounds)
    assert_close(torch.cat(chunks), whole[0])
    for one, other in zip(kept(chunk_caches, [0, 40]), kept(whole_caches, [0, 40]), strict=True):
        assert_close(one, other)


def test_a_context_below_the_window_needs_no_more_than_itself(model: DiffusionGemmaModel) -> None:
    segments = [[segment(Phase.PREFILL, 1, 0, 5)], [segment(Phase.PREVIEW, 1, 5, 8)]]
    small, caches = run(model, segments, context=6)
    assert caches.layer_keys[0].shape[2] == 6
    large, _ = run(model, segments)
    for one, other in zip(small, large, strict=True):
        assert_close(one, other)


def test_sliding_layers_keep_their_window_only(model: DiffusionGemmaModel) -> None:
    _, caches = run(model, [BEFORE])
    window = model.config.sliding.window
    assert window is not None
    places = [keys[0, ..., 0].numel() // SLOTS for keys in caches.layer_keys]
    assert places == [window - 1] * (len(places) - 1) + [CONTEXT]
    assert caches.committed(0, 2, 80)[0].shape[1] == window - 1
    assert caches.committed(0, 3, 3)[0].shape[1] == 3


def test_encoder_and_decoder_scalars_differ(model: DiffusionGemmaModel) -> None:
    """A fixture whose two scalars were equal could not tell them apart."""
    assert all(layer.scalars[0] != layer.scalars[1] for layer in model.layers)


def test_previews_write_nothing_and_a_reset_slot_is_as_new(model: DiffusionGemmaModel) -> None:
    prompt = segment(Phase.PREFILL, 0, 0, 30)
    caches = model.new_caches(1, CONTEXT)
    first = model.forward(RoundBatch.from_segments([prompt]), caches)
    before = [x.clone() for x in (*caches.layer_keys, *caches.layer_values, caches.signals)]
    model.forward(RoundBatch.from_segments([segment(Phase.PREVIEW, 0, 30, 8)]), caches)
    after = (*caches.layer_keys, *caches.layer_values, caches.signals)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    for tensor in after:
        tensor.fill_(float("nan"))
    caches.prepare(caches.room.renew([0]))
    assert_close(model.forward(RoundBatch.from_segments([prompt]), caches), first)
    assert not caches.signals.any()


def test_a_poisoned_slot_does_not_touch_its_neighbours(model: DiffusionGemmaModel) -> None:
    caches = model.new_caches(SLOTS, CONTEXT)
    model.forward(RoundBatch.from_segments([segment(Phase.PREFILL, 0, 0, 9)]), caches)
    for tensor in (*caches.page_stores, *caches.state_stores):
        # the slot's line, or its pages
        each = caches.room.pages_per_slot if tensor.shape[1] > SLOTS else 1
        tensor[:, :each] = float("nan")
    caches.signals[0] = float("nan")
    mixed = [segment(Phase.PREVIEW, 0, 9, 8), segment(Phase.PREVIEW, 1, 0, 8)]
    got = model.forward(RoundBatch.from_segments(mixed), caches)
    alone, _ = run(model, [[mixed[1]]])
    assert not got[:8].isfinite().all()
    assert_close(got[8:], alone[0])


def test_warm_up_runs(model: DiffusionGemmaModel) -> None:
    engine = Engine(model, EngineConfig(max_slots=3, max_context=CONTEXT, prefill_token_budget=64))
    engine.warm_up()
    assert not engine.has_work


def test_bfloat16_runs_and_stays_near(model: DiffusionGemmaModel) -> None:
    """Routing may flip in bfloat16, so this only asks for the same size of numbers."""
    case = next(c for c in cases.CANVAS_CASES if cases.model(c) is model)
    small = load_model(cases.FIXTURES / case, dtype="bfloat16")
    assert isinstance(small, DiffusionGemmaModel)
    logits, _ = run(small, [BEFORE, MIXED])
    want, _ = run(model, [BEFORE, MIXED])
    difference = (torch.cat(logits) - torch.cat(want)).abs()
    assert difference.isfinite().all()
    assert difference.median() < 0.5
