"""Rules of random canvases against loops, and the noise they are drawn from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from blockdiff.decoding.noise import noise_keys, uniform_ids
from blockdiff.decoding.uniform import (
    Progress,
    Rules,
    accept_below,
    advance,
    find_finished,
    step_temperatures,
)

# sixteenths add up exactly, so that the order of additions does not matter
SIXTEENTHS = st.integers(0, 64).map(lambda n: n / 16)


@given(
    entropy=arrays.arrays(
        np.float32, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=SIXTEENTHS
    ),
    bound=SIXTEENTHS,
    every_fifth=st.sampled_from([-1, 0, 3]),
)
@settings(deadline=None, max_examples=60)
def test_acceptance_by_entropy(entropy: np.ndarray, bound: float, every_fifth: int) -> None:
    is_given = np.arange(entropy.size).reshape(entropy.shape) % 5 == every_fifth
    accepted = accept_below(entropy, np.full(len(entropy), bound, np.float32), is_given)
    for line, fixed, got in zip(entropy, is_given, accepted.tolist(), strict=True):
        before, want = 0.0, [False] * len(line)
        free = np.flatnonzero(~fixed).tolist()
        for place in sorted(free, key=lambda place: line[place]):
            want[place] = before <= bound
            before += line[place]
        assert got == want
        assert not free or got[min(free, key=lambda place: line[place])]


def test_temperatures_fall_from_t_max() -> None:
    steps = np.array([4, 4, 4, 1, 48])
    step = np.array([0, 1, 3, 0, 47])
    low, high = np.full(5, 0.4, np.float32), np.full(5, 0.8, np.float32)
    got = step_temperatures(step, steps, low, high)
    np.testing.assert_allclose(got, [0.8, 0.7, 0.5, 0.8, 0.4 + 0.4 / 48], rtol=1e-6)


@pytest.mark.parametrize("stability", [0, 1, 2, 3])
def test_a_canvas_ends_when_stable_and_confident_or_out_of_steps(stability: int) -> None:
    history = [[1, 2], [1, 3], [1, 3], [1, 3], [1, 3], [4, 3], [4, 3]]
    entropies = [0.1, 0.1, 0.1, 0.5, 0.1, 0.1, 0.1]
    rules = Rules(np.array([7]), np.array([stability]), np.array([0.2], np.float32))
    # what a slot's last canvas left behind has no part in a new one's first step
    progress = Progress(np.array([[1, 2]]), np.array([5]))
    for step, (best, entropy) in enumerate(zip(history, entropies, strict=True)):
        number = np.array([step])
        progress = advance(progress, number, np.array([best]))
        measured = np.full((1, 2), entropy, np.float32)
        got = find_finished(progress, number, measured, rules, np.zeros((1, 2), np.bool_))
        before = history[max(step - stability, 0) : step]
        is_stable = len(before) == stability and all(line == best for line in before)
        assert bool(got[0]) == ((is_stable and entropy < 0.2) or step == 6), step


def test_uniform_ids_are_spread_and_depend_on_their_key_only() -> None:
    count, rows = 11, 22_000
    seeds = np.arange(rows, dtype=np.uint64)
    positions = np.arange(rows, dtype=np.int64) % 7
    keys = noise_keys(seeds, positions, positions // 2)
    found = uniform_ids(keys, count)
    assert found.min() == 0 and found.max() == count - 1
    shares = np.bincount(found, minlength=count) / rows
    # five standard deviations
    assert np.abs(shares - 1 / count).max() < 5 * (1 / count / rows) ** 0.5
    assert (uniform_ids(keys[::-1], count) == found[::-1]).all()
