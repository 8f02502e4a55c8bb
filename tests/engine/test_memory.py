"""Pages, kept prefixes and suspension, seen from outside: what is computed, and who waits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blockdiff.core import Phase, Request
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import ConfigError, RequestError
from blockdiff.scheduler import BlockOpening, MemoryRules, SlotTable
from blockdiff.scheduler.counters import Counters
from blockdiff.scheduler.memory import Memory
from tests.engine import fakes

SYSTEM = [(7 * i) % 30 for i in range(64)]


def build(state_bytes: int = 8, **settings: Any) -> tuple[fakes.HashModel, Engine]:
    model = fakes.HashModel(fakes.info(block_anchor="zero", block_lengths_allowed=None))
    model.state_bytes = state_bytes
    fields = {"max_slots": 8, "page_length": 8, "check_invariants": True} | settings
    return model, Engine(model, EngineConfig(**fields))


def prefilled(model: fakes.FakeModel) -> int:
    """Prompt tokens computed so far."""
    segments = [segment for segments in model.rounds for segment in segments]
    return sum(rows for phase, _, rows in segments if phase is Phase.PREFILL)


def chats(count: int, question: int = 8) -> list[Request]:
    """Requests with one system prompt and questions that differ from their first token on."""
    return [
        fakes.request(i, [*SYSTEM, i % 30, *range(1, question)], max_tokens=4, ignore_eos=True)
        for i in range(1, count + 1)
    ]


@pytest.mark.parametrize("state_bytes", [0, 8])
def test_system_prompt_of_a_hundred_requests_is_prefilled_once(state_bytes: int) -> None:
    model, engine = build(state_bytes)
    requests = [replace(one, input_ids=(*SYSTEM, one.uid % 30, 5)) for one in chats(100)]
    results = fakes.run(engine, requests)
    for wanted in requests:
        assert fakes.ids(results[wanted.uid]) == fakes.decode_alone(model, wanted)[0]
    assert prefilled(model) == len(SYSTEM)
    assert engine.counters.hit_tokens == 99 * len(SYSTEM)
    assert engine.counters.queried_tokens == 100 * len(SYSTEM)


def test_states_are_kept_where_requests_that_come_later_part() -> None:
    """The second request finds keys and values but no state, and leaves one where it parts."""
    model, engine = build(snapshot_interval=1000)
    first, second, third = chats(3)
    computed = []
    for wanted in (first, second, third):
        before = prefilled(model)
        results = fakes.run(engine, [wanted])
        assert fakes.ids(results[wanted.uid]) == fakes.decode_alone(model, wanted)[0]
        computed.append(prefilled(model) - before)
    assert computed == [72, 72, 8]


def test_part_of_a_page_is_copied_for_who_shares_no_more() -> None:
    model, engine = build(state_bytes=0)
    first = fakes.request(1, SYSTEM[:32], max_tokens=4)
    second = fakes.request(2, [*SYSTEM[:28], 29, 29, 29, 29], max_tokens=4)
    fakes.run(engine, [first])
    before = prefilled(model)
    results = fakes.run(engine, [second])
    assert fakes.ids(results[2]) == fakes.decode_alone(model, second)[0]
    # three whole pages are shared, and of the fourth the first of two blocks
    assert prefilled(model) - before == 4
    again = fakes.run(engine, [replace(first, uid=3)])
    assert fakes.ids(again[3]) == fakes.decode_alone(model, first)[0], "the page was changed"


def test_prefix_of_another_block_length_is_another_prefix() -> None:
    """A block-causal commit sees its whole block, so the grid changes what it writes."""
    model, engine = build(state_bytes=0)
    fakes.run(engine, [fakes.request(1, SYSTEM[:32], max_tokens=4, block_length=4)])
    fakes.run(engine, [fakes.request(2, SYSTEM[:32], max_tokens=4, block_length=8)])
    assert engine.counters.hit_tokens == 0


def test_block_in_flight_is_not_shared() -> None:
    """The answer's last block was never committed, so it has to be computed by who sends it."""
    model, engine = build(state_bytes=0)
    first = fakes.request(1, SYSTEM[:8], max_tokens=8, block_length=4, ignore_eos=True)
    answer = fakes.ids(fakes.run(engine, [first])[1])
    fakes.run(engine, [fakes.request(2, [*SYSTEM[:8], *answer, 1], max_tokens=4, block_length=4)])
    assert engine.counters.hit_tokens == 8, "the second page of the prompt was in flight"


def test_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    _, engine = build(kv_cache_bytes=5 * 8)
    engine.validate(fakes.request(1, SYSTEM[:20], max_tokens=13))
    with pytest.raises(RequestError, match=r"20 prompt tokens and 14 more need 5 pages.* 4 pages"):
        engine.validate(fakes.request(1, SYSTEM[:20], max_tokens=14))


@pytest.mark.parametrize("keeps", [False, True])
def test_last_and_least_gives_way_and_comes_back(keeps: bool) -> None:
    """What it finds of its own when it comes back says nothing of how alike requests are."""
    model, engine = build(0, kv_cache_bytes=9 * 8, prefix_cache=keeps)
    requests = [
        fakes.request(1, SYSTEM[:16], max_tokens=24, priority=1, ignore_eos=True),
        fakes.request(2, SYSTEM[1:17], max_tokens=24, priority=2, ignore_eos=True),
        fakes.request(3, SYSTEM[2:18], max_tokens=24, priority=0, ignore_eos=True),
    ]
    results = fakes.run(engine, requests)
    for wanted in requests:
        assert fakes.ids(results[wanted.uid]) == fakes.decode_alone(model, wanted)[0]
    counts = {uid: results[uid][-1].forwards for uid in results}
    assert engine.counters.suspensions > 0
    assert counts[3] is not None and counts[3].prefill == 1, "the first by rank never gives way"
    assert counts[2] is not None and (keeps or counts[2].prefill > 1), "the last one gives way"
    assert engine.counters.hit_tokens == 0


@pytest.mark.parametrize("state_bytes", [0, 8])
def test_nobody_gives_way_where_that_would_free_nothing(state_bytes: int) -> None:
    """All share one prompt's pages, and one page more is all there is."""
    model, engine = build(state_bytes, kv_cache_bytes=10 * 8)
    requests = [fakes.request(uid, SYSTEM, max_tokens=9, ignore_eos=True) for uid in range(1, 9)]
    results = fakes.run(engine, requests)
    for wanted in requests:
        assert fakes.ids(results[wanted.uid]) == fakes.decode_alone(model, wanted)[0]
    assert engine.counters.suspensions == 0


def test_nobody_is_passed_for_ever() -> None:
    """Memory for one request at a time, and more urgent ones come without end."""
    _, engine = build(0, max_slots=2, kv_cache_bytes=6 * 8)
    engine.add_request(fakes.request(1, SYSTEM[:24], max_tokens=8, priority=1))
    for uid in range(2, 40):
        engine.add_request(fakes.request(uid, [uid % 30, *SYSTEM[:23]], max_tokens=16))
        while not engine.free_slots:
            if any(result.is_final and result.request_uid == 1 for result in engine.step()):
                return
    raise AssertionError("the least urgent request starves")


def test_who_waits_is_sound_after_a_round_that_failed_before_its_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the caches were to do for a waiting request was lost with the round."""
    model, engine = build(8, max_slots=2)
    first, second = (fakes.request(uid, SYSTEM, max_tokens=4) for uid in (1, 2))
    engine.add_request(first)
    engine.add_request(second)
    with monkeypatch.context() as broken:
        broken.setattr(engine._caches, "prepare", None)
        assert [(result.request_uid, result.is_final) for result in engine.step()] == [(1, True)]
    results = [result for _ in range(20) for result in engine.step()]
    assert fakes.ids(results) == fakes.decode_alone(model, second)[0]


@pytest.mark.parametrize("pages", [1, 3])
def test_warm_up_fits_into_little_memory(pages: int) -> None:
    _, engine = build(kv_cache_bytes=(pages + 1) * 8)
    engine.warm_up()
    assert engine.counters.requests == 0


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kv_cache_bytes": 15}, "kv_cache_bytes: 15 is too little; one page of 8 tokens"),
        ({"kv_cache_bytes": 99.5}, "kv_cache_bytes: 99.5 .* whole number of at least 1"),
        ({"max_context": 1}, "max_context: 1 .* at least 2"),
        ({"page_length": 6}, "page_length: 6 .* multiple of .* block length 4, up to 256"),
        ({"page_length": 260}, "page_length: 260 .* up to 256"),
        ({"prefix_cache": "no"}, "prefix_cache: 'no' .* True or False"),
        ({"snapshot_bytes": 7}, "snapshot_bytes: 7 is too little; one state takes 8 bytes"),
        ({"snapshot_bytes": 8, "prefix_cache": False}, "snapshot_bytes: 8 .* without prefix_cache"),
        ({"snapshot_bytes": 8, "state_bytes": 0}, "snapshot_bytes: 8 .* without states"),
        ({"snapshot_interval": 8, "state_bytes": 0}, "snapshot_interval: 8 .* without states"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build(**settings)


def test_what_was_ordered_for_a_slot_is_forgotten_with_it() -> None:
    """A slot can be given up between the order and the round that would have carried it out."""
    table = SlotTable(2, fakes.MASK, BlockOpening())
    memory = Memory(table, MemoryRules(pages=4, page_length=4, pages_per_slot=4), Counters())
    memory.reserve(np.array([0]), np.array([8]))
    first, second = memory.held_pages(0).tolist()
    memory.pending.resets.add(0)
    memory.pending.restores[0] = 7
    memory.release(0)
    copy = memory.take_copies(1, np.array([3]))
    assert copy.tolist() == [second]
    work = memory.take_work()
    assert work is not None and memory.take_work() is None
    assert not len(work.reset_slots) and not len(work.restore_to)
    # the page that is copied onto must not be cleared afterwards
    assert (work.copy_from.tolist(), work.copy_to.tolist()) == ([3], [second])
    assert work.cleared.tolist() == [first]


def test_kept_prefixes_do_not_make_requests_begin_in_vain() -> None:
    """A request that comes back takes its kept pages only when there is room for the rest."""
    suspensions = {}
    for keeps in (False, True):
        _, engine = build(0, kv_cache_bytes=33 * 8, prefix_cache=keeps, max_slots=4)
        prompts = [[(7 * i * uid + uid) % 30 for i in range(70)] for uid in range(1, 7)]
        requests = [
            fakes.request(uid, prompt, max_tokens=120, ignore_eos=True)
            for uid, prompt in enumerate(prompts)
        ]
        fakes.run(engine, requests)
        suspensions[keeps] = engine.counters.suspensions
    assert 0 < suspensions[True] <= suspensions[False]


def test_memory_beyond_what_slots_need_keeps_prefixes() -> None:
    _, engine = build(0, max_slots=1, max_context=32, kv_cache_bytes=101 * 8)
    assert (engine.memory.pages, engine.memory.pages_per_slot) == (100, 4)


@pytest.mark.parametrize("available", [1 << 12, 1 << 62])
def test_memory_that_is_not_there_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch, available: int
) -> None:
    """Budgets are compared with what the host has; whatever else fails ends in one line too."""

    def fail(*sizes: object) -> None:
        raise RuntimeError("you tried to allocate too many bytes")

    monkeypatch.setattr("blockdiff.engine.memory.available_memory", lambda: available)
    monkeypatch.setattr(fakes.HashModel, "new_caches", fail)
    with pytest.raises(
        ConfigError, match=r"the caches take 8\d+ bytes and .*; lower these"
    ) as found:
        build(0, kv_cache_bytes=8000)
    assert len(str(found.value).splitlines()) == 1


def test_uid_is_free_again_only_when_its_results_have_been_handed_out() -> None:
    _, engine = build(0)
    engine.add_request(fakes.request(1, SYSTEM, max_tokens=4))
    engine.cancel(1)
    with pytest.raises(RequestError, match="uid: 1 is already running"):
        engine.add_request(fakes.request(1, SYSTEM, max_tokens=4))
    assert [result.is_final for result in engine.step()] == [True]
    engine.add_request(fakes.request(1, SYSTEM, max_tokens=4))
