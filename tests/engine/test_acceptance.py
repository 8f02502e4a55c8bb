"""Acceptance, schedules, token choice and noise, each against its plain definition."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.decoding.acceptance import accept, scheduled_counts
from blockdiff.decoding.endings import find_endings
from blockdiff.decoding.plain_noise import plain_gumbel_noise
from blockdiff.decoding.sampling import (
    Draws,
    RowSampling,
    choose_tokens,
    noise_keys,
    top_tokens,
)
from blockdiff_kernels.head.noise import gumbel_noise

VOCAB = 50


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_accept_follows_its_definition(data: st.DataObject) -> None:
    groups, width = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    # Few distinct values, so that ties happen.
    confidence = np.array(
        data.draw(
            st.lists(
                st.lists(
                    st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]), min_size=width, max_size=width
                ),
                min_size=groups,
                max_size=groups,
            )
        ),
        np.float32,
    )
    masked = np.random.default_rng(data.draw(st.integers(0, 999))).random((groups, width)) < 0.7
    minimum = np.array(data.draw(st.lists(st.integers(1, 9), min_size=groups, max_size=groups)))
    limits = st.sampled_from([0.0, 0.2, 0.5, 1.0, float("inf")])
    threshold = np.array(data.draw(st.lists(limits, min_size=groups, max_size=groups)), np.float32)
    got = accept(confidence, masked, minimum, threshold)
    for group in range(groups):
        places = [p for p in range(width) if masked[group, p]]
        best = sorted(places, key=lambda p: (-confidence[group, p], p))
        above = [p for p in places if confidence[group, p] > threshold[group]]
        wanted = above if len(above) >= minimum[group] else best[: minimum[group]]
        assert sorted(wanted) == np.flatnonzero(got[group]).tolist()


@pytest.mark.parametrize("block_length", [1, 4, 7, 16])
def test_schedules_share_out_the_whole_block(block_length: int) -> None:
    for steps in range(1, block_length + 1):
        counts = scheduled_counts(block_length, steps)
        assert len(counts) == steps and sum(counts) == block_length
        assert counts == sorted(counts, reverse=True) and counts[0] - counts[-1] <= 1


def sampling(rows: int, **changes: Any) -> RowSampling:
    """Every row sampled at temperature 1 with its own key, nothing banned."""
    where = np.arange(rows)
    fields = {
        "rows": torch.arange(rows),
        "temperature": torch.ones(rows),
        "top_k": torch.zeros(rows, dtype=torch.int64),
        "top_p": torch.ones(rows),
        "keys": torch.from_numpy(noise_keys(np.full(rows, 7, np.uint64), where, where * 0)),
        "has_filters": False,
    }
    return RowSampling(draws=Draws(**{**fields, **changes}))


def test_greedy_takes_the_best_and_its_probability() -> None:
    logits = torch.randn(20, VOCAB)
    tokens, log_confidence = choose_tokens(logits.clone(), RowSampling())
    assert tokens.tolist() == logits.argmax(dim=1).tolist()
    wanted = torch.log_softmax(logits, dim=1).max(dim=1).values
    torch.testing.assert_close(log_confidence, wanted)


def test_banned_tokens_are_never_chosen_and_do_not_change_probabilities() -> None:
    logits = torch.randn(8, VOCAB)
    best = logits.argmax(dim=1)
    pairs, column = (torch.arange(8), best), int(best[0])
    for draws in (sampling(8).draws, None):
        rules = RowSampling(never=(column,), banned=pairs, draws=draws)
        tokens, log_confidence = choose_tokens(logits.clone(), rules)
        assert (tokens != best).all() and (tokens != column).all()
        wanted = torch.log_softmax(logits, dim=1).gather(1, tokens[:, None])[:, 0]
        torch.testing.assert_close(log_confidence, wanted)


def test_samples_follow_the_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).repeat(20000, 1)
    tokens, _ = choose_tokens(logits, sampling(20000))
    shares = torch.bincount(tokens, minlength=4) / 20000
    torch.testing.assert_close(shares, torch.softmax(logits[0], 0), atol=0.015, rtol=0)


def test_top_tokens_are_in_order_and_equal_ones_by_id() -> None:
    logits = (
        torch.randn(50, VOCAB).round(decimals=0) * torch.tensor([1.0, -1.0]).repeat(25)[:, None]
    )
    ids, log_probs = top_tokens(logits.clone(), 7)
    want = torch.log_softmax(logits, dim=1)
    for row in range(50):
        ordered = sorted(range(VOCAB), key=lambda token: (-want[row, token].item(), token))
        assert ids[row].tolist() == ordered[:7]
        assert torch.equal(log_probs[row], want[row, ids[row]])
    assert top_tokens(logits, VOCAB + 3)[0].shape == (50, VOCAB)


def test_temperature_sharpens_and_flattens() -> None:
    logits = torch.tensor([[1.0, 0.0]]).repeat(20000, 1)
    for temperature in (0.25, 4.0):
        tokens, _ = choose_tokens(
            logits.clone(), sampling(20000, temperature=torch.full((20000,), temperature))
        )
        wanted = torch.softmax(logits[0] / temperature, 0)[0].item()
        assert abs((tokens == 0).float().mean().item() - wanted) < 0.015


@pytest.mark.parametrize("has_filters", [False, True])
def test_tiny_temperatures_are_greedy(has_filters: bool) -> None:
    logits = torch.randn(20, VOCAB) * 50
    tiny = sampling(20, temperature=torch.full((20,), 1e-45), has_filters=has_filters)
    tokens, _ = choose_tokens(logits.clone(), tiny)
    assert tokens.tolist() == logits.argmax(dim=1).tolist()


def test_filters_keep_only_the_best() -> None:
    rows = 4000
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]]).repeat(rows, 1)
    order = torch.randperm(5)
    shuffled = logits[:, order]

    def kept(**filters: torch.Tensor) -> set[int]:
        tokens, _ = choose_tokens(shuffled.clone(), sampling(rows, has_filters=True, **filters))
        return {int(order[token]) for token in set(tokens.tolist())}

    assert kept(top_k=torch.full((rows,), 2)) == {0, 1}
    assert kept(top_k=torch.full((rows,), 1)) == {0}
    # Probabilities are about 0.64, 0.23, 0.09, 0.03, 0.01.
    assert kept(top_p=torch.full((rows,), 0.5)) == {0}
    assert kept(top_p=torch.full((rows,), 0.7)) == {0, 1}
    assert kept(top_p=torch.full((rows,), 1e-6)) == {0}
    assert kept(top_k=torch.full((rows,), 3), top_p=torch.full((rows,), 0.97)) == {0, 1, 2}
    assert kept() == {0, 1, 2, 3, 4}
    # Shares of the best one are 1, 0.37, 0.14, 0.05, 0.02.
    assert kept(min_p=torch.full((rows,), 0.3)) == {0, 1}
    assert kept(min_p=torch.ones(rows)) == {0}
    assert kept(min_p=torch.zeros(rows)) == {0, 1, 2, 3, 4}
    assert kept(top_k=torch.full((rows,), 4), min_p=torch.full((rows,), 0.1)) == {0, 1, 2}


def test_noise_depends_on_each_part_of_the_key_and_on_nothing_else() -> None:
    def noise(seed: int, position: int, step: int) -> torch.Tensor:
        keys = noise_keys(np.array([seed], np.uint64), np.array([position]), np.array([step]))
        return gumbel_noise(torch.from_numpy(keys), VOCAB)[0]

    base = noise(1, 2, 3)
    assert torch.equal(base, noise(1, 2, 3))
    for other in (noise(2, 2, 3), noise(1, 3, 3), noise(1, 2, 4), noise(2**64 - 1, 2, 3)):
        assert not torch.isclose(base, other).any()
    assert torch.isfinite(noise(0, 0, 0)).all()


@pytest.mark.parametrize("rows, vocab", [(0, 5), (3, 1), (70, 4099), (2, 300_000)])
def test_noise_has_the_bits_of_its_definition(rows: int, vocab: int) -> None:
    seeds = np.arange(rows, dtype=np.uint64) * np.uint64(0x123456789ABCDEF)
    keys = torch.from_numpy(noise_keys(seeds, np.arange(rows), np.arange(rows)))
    assert torch.equal(gumbel_noise(keys, vocab), plain_gumbel_noise(keys, vocab))


def test_noise_is_gumbel() -> None:
    keys = noise_keys(np.arange(400, dtype=np.uint64), np.zeros(400, np.int64), np.arange(400))
    values = gumbel_noise(torch.from_numpy(keys), 500).flatten()
    assert abs(values.mean().item() - 0.5772) < 0.01
    assert abs(values.var().item() - np.pi**2 / 6) < 0.03
    share_below_zero = (values < 0).float().mean().item()
    assert abs(share_below_zero - np.exp(-1)) < 0.01


def test_endings_go_by_flags_not_by_ids() -> None:
    canvas = np.array([[5, 9, 9, 1], [9, 2, 3, 4], [1, 2, 9, 3]])
    masked = np.array([[False, True, False, False], [False] * 4, [False, False, False, True]])
    eos = np.array([[9, -1]] * 3)
    ending = find_endings(canvas, masked, np.full(3, 4), np.array([0, 1, 0]), eos)
    # An EOS behind a mask is not settled; one in the prompt part is not an ending.
    assert ending.settled.tolist() == [1, 4, 3]
    assert ending.eos.tolist() == [-1, -1, 2]
