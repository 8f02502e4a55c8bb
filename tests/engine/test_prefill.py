"""Sharing the prefill budget, and chunks in real rounds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.core import Phase
from blockdiff.engine import Engine, EngineConfig
from blockdiff.scheduler.prefill import share_budget

from .fakes import HashModel, decode_alone, ids, info, request, run


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from([1, 4, 8]), st.integers(0, 2)), max_size=6
    ),
    st.integers(1, 64),
)
def test_shares_are_whole_granules_and_the_oldest_advances(
    newcomers: list[tuple[int, int, int]], budget: int
) -> None:
    newcomers = sorted(newcomers, key=lambda one: one[2])
    granule = np.array([g for _, g, _ in newcomers], np.int64)
    remaining = np.array([count * g for count, g, _ in newcomers], np.int64)
    priority = np.array([p for _, _, p in newcomers], np.int64)
    chunks = share_budget(remaining, granule, priority, budget)
    assert (chunks >= 0).all() and (chunks <= remaining).all()
    assert (chunks % np.maximum(granule, 1) == 0).all()
    if newcomers:
        assert chunks[0] > 0
        # Over the budget only if not even one granule of the oldest fits.
        assert chunks.sum() <= max(budget, int(granule[0]))
    if newcomers and (granule == 1).all():
        assert chunks.sum() == min(budget, remaining.sum())


def test_shares_are_equal_and_short_prompts_pass_on_theirs() -> None:
    ones = np.ones(3, np.int64)
    assert share_budget(np.array([100, 100, 100]), ones, ones, 30).tolist() == [10, 10, 10]
    assert share_budget(np.array([100, 4, 100]), ones, ones, 30).tolist() == [13, 4, 13]
    assert share_budget(np.array([100]), ones[:1], ones[:1], 30).tolist() == [30]


def test_first_priority_goes_first_and_the_others_do_not_starve() -> None:
    ones, priority = np.ones(3, np.int64), np.array([0, 0, 1])
    assert share_budget(np.array([100, 100, 100]), ones, priority, 32).tolist() == [14, 14, 4]
    assert share_budget(np.array([10, 10, 100]), ones, priority, 32).tolist() == [10, 10, 12]
    assert share_budget(np.array([100, 100, 1]), ones, priority, 32).tolist() == [15, 16, 1]


@pytest.mark.parametrize("prompt_length", [1, 7, 8, 9, 40])
@pytest.mark.parametrize("budget", [3, 8, 64])
def test_a_prompt_takes_as_many_rounds_as_its_length_needs(prompt_length: int, budget: int) -> None:
    model = HashModel()
    engine = Engine(model, EngineConfig(max_slots=2, prefill_token_budget=budget))
    wanted = request(prompt=[1] * prompt_length, max_tokens=4)
    blocks = run(engine, [wanted])[1]
    assert ids(blocks) == decode_alone(model, wanted)[0]
    assert blocks[-1].forwards is not None
    assert blocks[-1].forwards.prefill == math.ceil(prompt_length / budget)
    # The first preview runs in the round of the last chunk.
    assert blocks[-1].forwards.preview == blocks[0].denoise_steps
    rounds = blocks[-1].forwards.prefill + blocks[0].denoise_steps - 1
    assert engine.counters.rounds == rounds


def test_a_long_newcomer_never_stalls_running_requests() -> None:
    model = HashModel()
    engine = Engine(model, EngineConfig(max_slots=3, prefill_token_budget=8))
    engine.add_request(request(1, max_tokens=40, ignore_eos=True, denoise_steps=4))
    engine.step()
    engine.add_request(request(2, prompt=[3] * 100, max_tokens=4))
    engine.add_request(request(3, prompt=[4] * 10, max_tokens=4))
    for number in range(10):
        engine.step()
        phases = [(phase, slot) for phase, slot, _ in model.rounds[-1]]
        assert (Phase.PREVIEW, 0) in phases, f"request 1 was stalled in round {number}"
        prefilled = sum(rows for phase, _, rows in model.rounds[-1] if phase == Phase.PREFILL)
        assert prefilled <= 8
    # The short newcomer is not stuck behind the long one.
    assert not any(slot == 2 and phase == Phase.PREFILL for phase, slot in phases)


@pytest.mark.parametrize("prompt_length", [1, 3, 4, 5, 8, 11])
def test_grid_at_zero_prefills_whole_blocks_only(prompt_length: int) -> None:
    model = HashModel(info(block_anchor="zero"))
    engine = Engine(model, EngineConfig(max_slots=1, prefill_token_budget=6))
    wanted = request(prompt=list(range(1, prompt_length + 1)), max_tokens=9)
    blocks = run(engine, [wanted])[1]
    assert ids(blocks) == decode_alone(model, wanted)[0]
    chunks = [rows for round_ in model.rounds for phase, _, rows in round_ if not phase]
    assert sum(chunks) == prompt_length - prompt_length % 4
    assert all(rows % 4 == 0 for rows in chunks)
    assert len(blocks[0].token_ids) <= 4 - prompt_length % 4
