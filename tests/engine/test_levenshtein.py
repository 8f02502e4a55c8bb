"""One update of insert and delete editing: what holds whatever a preview says."""

from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.decoding.levenshtein import (
    Canvases,
    Choices,
    Controls,
    Rules,
    apply_update,
    choose_update,
    mask_again,
    places_to_resample,
)

PLAIN, MASK, DELETE, SPLIT = 5, 5, 6, 7
CONTROLS = Controls(MASK, DELETE, SPLIT)


class Case(NamedTuple):
    before: Canvases
    choices: Choices
    rules: Rules


def tagged(generator: Any, shape: tuple[int, int], kind: int) -> Any:
    """Log probabilities that tell place and kind apart, some of them high."""
    places = np.arange(shape[1], dtype=np.float32)
    level = generator.choice([0.01, 1.0, 3.0], size=shape)
    return (-level - places * 1e-3 - kind * 1e-5).astype(np.float32)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    generator = np.random.default_rng(draw(st.integers(0, 10**9)))
    shape = groups, width = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    places = np.arange(width)
    length = generator.integers(1, width + 1, groups)
    first = generator.integers(0, length)
    is_response = (places >= first[:, None]) & (places < length[:, None])
    masked = is_response & (generator.random(shape) < generator.random())
    # prompts hold any token, and so does what lies beyond a block
    tokens = generator.integers(0, np.where(is_response, PLAIN, 8))
    before = Canvases(
        np.where(masked, MASK, tokens),
        np.where(masked, np.float32(0), tagged(generator, shape, 0)),
        masked,
        is_response & (generator.random(shape) < 0.6),
    )
    best = generator.integers(0, 8, shape)
    log_probs = tagged(generator, shape, 1)
    other = np.where(best == MASK, generator.choice([0, 1, DELETE, SPLIT], size=shape), best)
    choices = Choices(
        best,
        log_probs,
        other,
        np.where(best == MASK, log_probs - np.float32(2), log_probs),
        generator.integers(0, PLAIN, shape),
        tagged(generator, shape, 2) - np.float32(4),
    )
    limits = np.array([0.0, 0.2, 0.5, 1.0], np.float32)
    rules = Rules(
        length,
        first,
        generator.integers(1, 3, groups),
        generator.choice(limits, groups),
        generator.choice(limits, groups),
        generator.integers(0, 4, groups),
        generator.integers(0, 12, groups),
        generator.integers(0, 4, groups),
    )
    return Case(before, choices, rules)


def pairs(canvases: Canvases, group: int, places: range) -> list[tuple[Any, ...]]:
    return [tuple(part[group, place].item() for part in canvases) for place in places]


@settings(max_examples=300, deadline=None)
@given(cases())
def test_blocks_stay_whole(case: Case) -> None:
    before, choices, rules = case
    kept = [part.copy() for part in before]
    update = choose_update(before, choices, rules, CONTROLS)
    after = apply_update(before, update, rules.block_length, CONTROLS)
    assert all(np.array_equal(part, old) for part, old in zip(before, kept, strict=True))
    for group in range(len(rules.block_length)):
        first, end = int(rules.first_response[group]), int(rules.block_length[group])
        for fixed in (range(first), range(end, before.tokens.shape[1])):
            assert pairs(after, group, fixed) == pairs(before, group, fixed)
        inside = slice(first, end)
        tokens, masked = after.tokens[group, inside], after.is_masked[group, inside]
        assert ((tokens == MASK) == masked).all()
        assert not np.isin(tokens, [DELETE, SPLIT]).any()
        assert (after.log_probs[group, inside][masked] == 0).all()
        if update.is_settled[group]:
            assert not masked.any()
        elif before.is_masked[group].any():
            assert update.is_written[group].any()
    assert after.tokens.shape == before.tokens.shape


@settings(max_examples=300, deadline=None)
@given(cases())
def test_what_is_written_moves_with_its_probability(case: Case) -> None:
    before, choices, rules = case
    update = choose_update(before, choices, rules, CONTROLS)
    after = apply_update(before, update, rules.block_length, CONTROLS)
    for group in range(len(rules.block_length)):
        end = int(rules.block_length[group])
        line: list[tuple[Any, ...]] = []
        for place, old in enumerate(pairs(before, group, range(end))):
            token = int(update.tokens[group, place])
            if not update.is_written[group, place]:
                line.append(old)
            elif token == SPLIT:
                line += [(MASK, 0.0, True, False), old]
            elif token == MASK:
                line.append((MASK, 0.0, True, old[3]))
            elif token != DELETE:
                line.append((token, update.log_probs[group, place].item(), False, old[3]))
        line += [(MASK, 0.0, True, False)] * end
        assert pairs(after, group, range(end)) == line[:end]


@settings(max_examples=200, deadline=None)
@given(cases())
def test_originals_are_filled_first_among_masks(case: Case) -> None:
    before, choices, rules = case
    update = choose_update(before, choices, rules, CONTROLS)
    original = before.is_masked & before.is_original
    filled = update.is_written & before.is_masked
    for group in np.flatnonzero(original.any(axis=1)):
        assert (filled & original)[group].any()
        if not update.is_last[group]:
            assert (update.tokens[group][original[group]] != MASK).all()
    for group in np.flatnonzero(~original.any(axis=1)):
        assert np.array_equal(filled[group], before.is_masked[group])
    last = update.is_written & update.is_last[:, None]
    assert not np.isin(update.tokens[last], CONTROLS).any()


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(0, 99))
def test_only_a_block_seen_before_is_sampled_anew(case: Case, seed: int) -> None:
    before, choices, rules = case
    generator = np.random.default_rng(seed)
    update = choose_update(before, choices, rules, CONTROLS)
    groups, width = before.tokens.shape
    seen = np.stack([before.tokens, (before.tokens + 1) % 8], axis=1)
    # what lies beyond a block may have been anything
    beyond = np.arange(width) >= rules.block_length[:, None]
    seen = np.where(beyond[:, None], generator.integers(0, 8, seen.shape), seen)
    is_seen = generator.random((groups, 2)) < 0.5
    places = places_to_resample(before, update, rules.block_length, seen, is_seen)
    for group in range(groups):
        changing = [
            place
            for place in range(width)
            if update.is_written[group, place]
            and update.tokens[group, place] != before.tokens[group, place]
        ]
        if not is_seen[group, 0] or update.is_last[group] or not changing:
            assert places[group] == -1
        else:
            least = min(changing, key=lambda place: (update.log_probs[group, place], place))
            assert places[group] == least


def test_a_refused_token_becomes_an_introduced_mask() -> None:
    before = Canvases(
        np.array([[3, 4]]), np.array([[-1, -2]], np.float32), np.zeros((1, 2), bool),
        np.ones((1, 2), bool),
    )  # fmt: skip
    after = mask_again(before, np.array([[False, True]]), MASK)
    assert pairs(after, 0, range(2)) == [(3, -1.0, False, True), (MASK, 0.0, True, False)]
