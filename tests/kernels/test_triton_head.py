"""Head kernels against float64. Run: pytest tests/kernels"""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.head import (
    Controls,
    Entropy,
    Filters,
    RowDraws,
    Rules,
    choose,
    expect,
    expecting,
    keeping,
    reference,
)
from blockdiff_kernels.head.noise import gumbel_noise
from blockdiff_kernels.head.parts import gumbel
from blockdiff_kernels.implementation import using
from blockdiff_kernels.launch import launch
from tests.kernels.errors import assert_near

NONE = torch.full((1, 1), -1, dtype=torch.int32)


def make(rows: int, vocabulary: int, width: int, dtype: torch.dtype, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, width, generator=generator)
    weight = torch.randn(vocabulary, width, generator=generator) * (3.0 / width**0.5)
    return hidden.to(dtype), weight.to(dtype)


def draws(rows: int, *temperatures: float) -> RowDraws:
    keys = torch.randint(-(2**31), 2**31, (rows, 2), generator=torch.Generator().manual_seed(1))
    chosen = [temperatures[row % len(temperatures)] for row in range(rows)]
    return RowDraws(torch.tensor(chosen), keys.int())


def bans(rows: int, *ids: int) -> Tensor:
    """Odd rows may not choose ``ids``, even ones all but the last of them."""
    table = torch.tensor([ids], dtype=torch.int32).repeat(rows, 1)
    table[::2, -1] = -1
    return table


def check(hidden: Tensor, weight: Tensor, cap: float | None, rules: Rules) -> None:
    """Every result is that of float64, tokens included."""
    with using("triton"):
        found = choose(hidden, weight, cap, rules)
    exact = reference.choose(hidden.double(), weight.double(), cap, rules)
    assert torch.equal(found.tokens, exact.tokens)
    assert torch.equal(found.best, exact.best)
    near = {"rtol": 2e-6, "atol": 4e-6}
    torch.testing.assert_close(found.log_probs.double(), exact.log_probs, **near)
    torch.testing.assert_close(found.best_log_probs.double(), exact.best_log_probs, **near)
    if exact.entropy is not None:
        torch.testing.assert_close(found.entropy.double(), exact.entropy, **near)
    if exact.others is not None:
        assert torch.equal(found.others.tokens, exact.others.tokens)
        assert torch.equal(found.others.final_tokens, exact.others.final_tokens)
        torch.testing.assert_close(found.others.log_probs.double(), exact.others.log_probs, **near)
        own, want = found.others.final_log_probs, exact.others.final_log_probs
        torch.testing.assert_close(own.double(), want, **near)


WAYS = {
    "greedy": (None, Entropy.NONE, None),
    "drawn": (draws(37, 0.0, 0.7, 10.0, 1e-30), Entropy.PLAIN, None),
    "canvas": (draws(37, 0.4, 0.8), Entropy.SCALED, None),
    "edited": (draws(37, 0.0, 1.0), Entropy.PLAIN, Controls(31, 5, 30)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocabulary", [33, 300])
def test_rows_choose_as_in_float64(way: str, dtype: torch.dtype, vocabulary: int) -> None:
    own, entropy, controls = WAYS[way]
    hidden, weight = make(37, vocabulary, 70, dtype)
    rules = Rules(bans(37, 31, 0, 7), own, entropy, controls)
    check(hidden, weight, 30.0 if way == "canvas" else None, rules)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_expect_an_embedding(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expecting, "TILE", 20 * 128)
    hidden, weight = make(20, 300, 70, dtype)
    rules = Rules(bans(20, 31, 0, 7), draws(20, 0.4, 0.8), Entropy.SCALED)
    with using("triton"):
        peaks = choose(hidden, weight, 30.0, rules).peaks
        found = expect(hidden, weight, 30.0, rules, peaks)
    exact = reference.expect(hidden.double(), weight.double(), 30.0, rules)
    assert_near(found, exact)


LISTED = [(5, 0.6), (1, 1.0), (8, 1e-9), (3, 0.99), (0, 1.0), (8, 1.0), (7, 0.3)]
OTHERS = [(0, 0.9), (0, 1e-9), (66, 1.0), (0, 1.0), (100, 1.0), (0, 0.3), (0, 0.6)]


@pytest.mark.parametrize("temperature", [0.7, 10.0])
@pytest.mark.parametrize(
    "chosen", [LISTED, OTHERS, LISTED + OTHERS], ids=["listed", "others", "mixed"]
)
def test_only_the_best_tokens_are_drawn(
    chosen: list[tuple[int, float]], temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "PASSES", 10)  # enough for so few tokens
    hidden, weight = make(14, 260, 70, torch.float32, seed=4)
    # exact products, so that equal logits are equal everywhere
    hidden, weight = (hidden * 8).round() / 8, (weight * 64).round() / 64
    weight[130:260] = weight[:130].clone()
    top_k = torch.tensor([k for k, _ in (chosen * 2)[:14]], dtype=torch.int32)
    top_p = torch.tensor([p for _, p in (chosen * 2)[:14]])
    filters = Filters(top_k, top_p, 8 * (chosen[0] == LISTED[0]), chosen[-1] == OTHERS[-1])
    own = draws(14, temperature, 0.0, temperature)._replace(filters=filters)
    plain = Rules(bans(14, 31, 0), own._replace(filters=None))
    rules = plain._replace(draws=own, live=torch.tensor([13], dtype=torch.int32))
    with using("triton"):
        found, free = choose(hidden, weight, None, rules), choose(hidden, weight, None, plain)
    exact = reference.choose(hidden.double(), weight.double(), None, rules)
    assert torch.equal(found.tokens[:13], exact.tokens[:13])
    near = {"rtol": 2e-6, "atol": 4e-6}
    torch.testing.assert_close(found.log_probs[:13].double(), exact.log_probs[:13], **near)
    assert not torch.equal(found.tokens[:13], free.tokens[:13]), "nothing was kept from anybody"


def test_a_large_vocabulary_and_a_bounded_logit() -> None:
    hidden, weight = make(3, 5000, 64, torch.bfloat16)
    check(hidden, weight, 5.0, Rules(bans(3, 4999, 0), None, Entropy.PLAIN))


def test_equal_logits_go_to_the_lowest_id_and_one_token_may_be_left() -> None:
    hidden, weight = torch.ones(2, 16), torch.ones(90, 16)
    table = torch.full((2, 89), -1, dtype=torch.int32)
    table[1] = torch.tensor([token for token in range(90) if token != 71])
    rules = Rules(table, draws(2, 0.0, 1.0), Entropy.PLAIN)
    check(hidden, weight, None, rules)
    with using("triton"):
        assert choose(hidden, weight, None, rules).tokens.tolist() == [0, 71]


def test_rows_that_do_not_count_are_left_alone() -> None:
    hidden, weight = make(40, 200, 32, torch.float32)
    hidden[20:] = float("nan")
    rules = Rules(NONE.expand(40, 1), live=torch.tensor([20], dtype=torch.int32))
    with using("triton"):
        found = choose(hidden, weight, None, rules)
    exact = reference.choose(hidden[:20], weight, None, Rules(NONE.expand(20, 1)))
    assert torch.equal(found.tokens[:20], exact.tokens)
    assert_near(found.log_probs[:20], exact.log_probs)
    assert (found.tokens[32:] == torch.iinfo(torch.int64).max).all(), "somebody wrote there"


def test_what_is_not_a_number_shows_in_its_row_alone() -> None:
    hidden, weight = make(3, 90, 32, torch.float32)
    hidden[1, 3] = float("nan")
    with using("triton"):
        found = choose(hidden, weight, None, Rules(NONE.expand(3, 1)))
        assert choose(hidden[:0], weight, None, Rules(NONE[:0])).tokens.shape == (0,)
    assert found.log_probs.isnan().tolist() == [False, True, False]
    assert ((found.tokens >= 0) & (found.tokens < 90)).all()


@triton.jit
def noise_kernel(keys, out, L, V, BV: tl.constexpr, BT: tl.constexpr):
    o_v, o_t = tl.arange(0, BV), tl.arange(0, BT)
    b_g = gumbel(keys, o_t, o_v, L)
    m = (o_v < V)[:, None] & (o_t < L)[None, :]
    tl.store(out + o_t[None, :] * V + o_v[:, None], b_g, mask=m)


def test_noise_is_that_of_the_definition() -> None:
    keys = draws(7, 1.0).keys
    keys[0] = torch.tensor([-1, 0])
    found = torch.empty(7, 60000)
    arguments = {"keys": keys, "out": found, "L": 7, "V": 60000, "BV": 65536, "BT": 8}
    launch(noise_kernel, (1,), arguments)
    # equal words; logarithms may differ in their last bits
    want = gumbel_noise(keys, 60000)
    torch.testing.assert_close(found, want, rtol=4e-7, atol=4e-7)
    assert (found == want).float().mean() > 0.5
