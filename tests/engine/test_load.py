"""Load-aware decoding: what pressure does to elastic requests, and to no others."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdiff.core import BlockResult, Mode
from blockdiff.engine import Engine, EngineConfig, EngineLoop
from blockdiff.engine.pressure import Pressure
from blockdiff.errors import ConfigError, RequestError
from blockdiff.scheduler.load import LoadAware

from .fakes import HashModel, ids, info, request
from .test_loop import SOON, Inbox, never

BOUNDS = LoadAware(lowest_threshold=0.5, fewest_steps_share=0.25)
SHARES = st.floats(0, 1)


@given(SHARES, st.integers(0, 64), SHARES, SHARES, st.floats(0.01, 1))
def test_limits_stay_between_their_own_value_and_the_bound(
    own: float, steps: int, pressure: float, lowest: float, share: float
) -> None:
    bounds = LoadAware(lowest, share)
    got = bounds.threshold(own, pressure)
    assert min(own, lowest) - 1e-12 <= got <= own
    assert bounds.threshold(own, pressure / 2) >= got
    assert bounds.threshold(own, 0.0) == own
    assert bounds.threshold(own, 1.0) == pytest.approx(min(own, lowest), abs=1e-12)
    assert bounds.steps(steps, 0.0) == steps
    if steps:
        assert max(round(steps * share), 1) <= bounds.steps(steps, pressure) <= steps
        assert bounds.steps(steps, pressure / 2) >= bounds.steps(steps, pressure)
    assert bounds.threshold(float("inf"), pressure) == float("inf")


def run(pressures: list[float], load_aware: LoadAware | None = BOUNDS) -> list[list[BlockResult]]:
    """Results of an elastic request by threshold, one by steps, and two that are not elastic.

    ``pressures``: one per round, the last for all that follow.
    """
    fields: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True}
    wanted = [
        request(0, threshold=0.9, is_elastic=True, **fields),
        request(1, denoise_steps=4, is_elastic=True, **fields),
        request(2, threshold=0.9, **fields),
        request(3, denoise_steps=4, **fields),
    ]
    engine = Engine(HashModel(), EngineConfig(max_slots=4, load_aware=load_aware))
    for one in wanted:
        engine.add_request(one)
    results: list[list[BlockResult]] = [[] for _ in wanted]
    turn = 0
    while engine.has_work:
        engine.set_pressure(pressures[min(turn, len(pressures) - 1)])
        turn += 1
        for result in engine.step():
            results[result.request_uid].append(result)
    return results


def test_without_pressure_or_bounds_nothing_changes() -> None:
    idle = run([0.0])
    assert run([1.0], load_aware=None) == idle
    assert ids(idle[0]) == ids(idle[2]) and ids(idle[1]) == ids(idle[3])
    assert {block.threshold for block in idle[0]} == {0.9}
    assert {block.step_cap for block in idle[1]} == {4}
    assert {(block.threshold, block.step_cap) for block in idle[3]} == {(None, 4)}


def test_pressure_moves_elastic_requests_and_no_others() -> None:
    idle, pressed = run([0.0]), run([1.0])
    assert pressed[2:] == idle[2:]
    # blocks that were open before the pressure came keep their limits
    assert [block.threshold for block in pressed[0]] == [0.9, 0.5, 0.5, 0.5]
    assert [block.step_cap for block in pressed[1]] == [4, 1, 1, 1]
    assert [block.denoise_steps for block in pressed[1]] == [4, 1, 1, 1]
    steps = [sum(block.denoise_steps for block in blocks[0]) for blocks in (idle, pressed)]
    assert steps[1] < steps[0]


def test_limits_follow_the_pressure_when_a_block_opens() -> None:
    # four rounds per block; what happens inside a block is of no account
    pressures = [0.0, 1.0, 1.0, 0.5, 1.0, 1.0]
    first, again = run(pressures), run(pressures)
    assert first == again
    caps = [block.step_cap for block in first[1]]
    # at pressure 0.5: round(4 * (1 - 0.5 * 0.75)) = 2
    assert caps == [4, 2, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=60))
def test_pressure_is_a_share_that_moves_in_small_steps(turns: list[tuple[int, int]]) -> None:
    pressure, before = Pressure(4), 0.0
    for waiting, free in turns:
        now = pressure.update(waiting, free)
        assert 0.0 <= now <= 1.0 and abs(now - before) < 0.1
        assert (now >= before) if waiting and not free else True
        assert now <= before or waiting
        before = now


def test_pressure_rises_while_somebody_waits_and_falls_afterwards() -> None:
    pressure = Pressure(4)
    for _ in range(60):
        pressure.update(1, 0)
    assert pressure.value > 0.95
    for _ in range(60):
        pressure.update(0, 0)
    assert pressure.value < 0.05


@pytest.mark.parametrize("fields", [{"lowest_threshold": 1.1}, {"fewest_steps_share": 0.0}])
def test_bounds_are_checked(fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(fields))}: .*allowed are"):
        LoadAware(**fields)


def test_determinism_and_giving_way_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="load_aware: .*deterministic"):
        EngineConfig(deterministic=True, load_aware=LoadAware())


@pytest.mark.parametrize("fields", [{"mode": Mode.AUTOREGRESSIVE}, {"algorithm": "sequential"}])
def test_what_cannot_give_way_is_refused(fields: dict[str, Any]) -> None:
    engine = Engine(HashModel(info(algorithms=("low_confidence", "sequential"))))
    with pytest.raises(RequestError, match="is_elastic: .*leave it out"):
        engine.validate(request(is_elastic=True, **fields))


def test_a_waiting_request_makes_the_running_one_give_way() -> None:
    model = HashModel()
    config = EngineConfig(max_slots=1, load_aware=BOUNDS)
    loop = EngineLoop(Engine(model, config))
    is_waiting = threading.Event()
    # the first round begins only when somebody waits
    model.before_round = lambda number: None if number else assert_set(is_waiting)
    inbox = Inbox()
    wanted = request(threshold=0.9, is_elastic=True, max_tokens=240, ignore_eos=True)
    loop.submit(wanted, inbox, loop.wait_for_slot(never))
    waiter = threading.Thread(target=lambda: loop.wait_for_slot(announce(is_waiting)).release())
    waiter.start()
    loop.start()
    try:
        thresholds = [block.threshold or 0.0 for block in inbox.wait()]
        waiter.join(SOON)
    finally:
        loop.shutdown(0.0)
    assert thresholds == sorted(thresholds, reverse=True)
    assert thresholds[0] == 0.9 and 0.5 <= thresholds[-1] < 0.6


def assert_set(event: threading.Event) -> None:
    assert event.wait(SOON), "nobody waits"


def announce(event: threading.Event) -> Callable[[], None]:
    """A waiter's question whether to stop: never, but it is heard."""
    return lambda: event.set()
