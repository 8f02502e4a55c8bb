"""Expert pools per block and the routing inside them, against loops in float64.

Run: pytest tests/kernels
"""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from blockdiff_kernels.coreset import (
    RowBlocks,
    pool_by_mass,
    pool_by_maximum,
    route_block,
    route_inside,
)
from blockdiff_kernels.moe import route, route_groups

Array = npt.NDArray[np.float64]
# blocks of 3, 1, 4 and 2 rows, the last one a block cut short, and two rows in no block
NUMBERS = [0, 0, 0, 1, 2, 2, 2, 2, -1, -1, 3, 3]
EXPERTS = 13


def blocks() -> RowBlocks:
    return RowBlocks(torch.tensor(NUMBERS), 4)


def members(row: int) -> list[int]:
    """Rows that decide about the pool of ``row``."""
    return [i for i, number in enumerate(NUMBERS) if number == NUMBERS[row]]


def best(scores: Array, count: int, among: list[int]) -> list[int]:
    """Highest scores first, lower ids first in ties."""
    return sorted(among, key=lambda e: (-scores[e], e))[:count]


def maximum_pool(scores: Array, row: int, capacity: int) -> list[int]:
    if NUMBERS[row] < 0:
        return list(range(scores.shape[1]))
    highest = np.array([max(scores[i, e] for i in members(row)) for e in range(scores.shape[1])])
    return best(highest, capacity, list(range(len(highest))))


def mass_pool(shares: Array, row: int, top_k: int, share: float) -> list[int]:
    everyone = list(range(shares.shape[1]))
    if NUMBERS[row] < 0:
        return everyone
    mass = np.zeros(len(everyone))
    for i in members(row):
        for expert in best(shares[i], top_k, everyone):
            mass[expert] += shares[i, expert]
    mass /= mass.sum()
    order = best(mass, len(everyone), everyone)
    kept: list[int] = []
    while len(kept) < len(everyone) and (mass[kept].sum() < share or len(kept) < top_k):
        if len(kept) >= top_k and mass[order[len(kept)]] == 0:
            break
        kept.append(order[len(kept)])
    return kept


def random_logits(seed: int, experts: int = EXPERTS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((len(NUMBERS), experts), generator=generator) * 2


def as_sets(allowed: torch.Tensor) -> list[set[int]]:
    return [set(row.nonzero().flatten().tolist()) for row in allowed]


@pytest.mark.parametrize("capacity", [1, 2, 5, 12, 13, 40])
def test_maximum_pools(capacity: int) -> None:
    scores = random_logits(capacity)
    got = as_sets(pool_by_maximum(scores, blocks(), capacity))
    for row in range(len(NUMBERS)):
        assert got[row] == set(maximum_pool(scores.double().numpy(), row, capacity))


def test_ties_at_the_cut_go_to_lower_experts() -> None:
    scores = torch.tensor([[0.5, 0.7, 0.5, 0.5, 0.1, 0.7]]).expand(len(NUMBERS), -1)
    assert as_sets(pool_by_maximum(scores, blocks(), 3))[0] == {0, 1, 5}
    assert as_sets(pool_by_maximum(scores, blocks(), 4))[3] == {0, 1, 2, 5}
    # equal mass everywhere: half of it is in experts 1, 5 and 0
    same = torch.full((len(NUMBERS), 6), 1 / 6)
    assert as_sets(pool_by_mass(same, blocks(), 4, 0.5))[0] == {0, 1, 2, 3}
    assert as_sets(pool_by_mass(same, blocks(), 2, 1.0))[0] == {0, 1}


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.95, 1.0])
@pytest.mark.parametrize("top_k", [1, 3, 13])
def test_mass_pools(share: float, top_k: int) -> None:
    shares = (random_logits(top_k) * 2).softmax(-1)
    got = as_sets(pool_by_mass(shares, blocks(), top_k, share))
    for row in range(len(NUMBERS)):
        want = set(mass_pool(shares.double().numpy(), row, top_k, share))
        assert got[row] == want and len(want) >= top_k


def test_all_of_the_mass_keeps_experts_of_vanishing_probability() -> None:
    logits = torch.full((len(NUMBERS), 7), -60.0)
    # rows of the first block: one uses 0, 1, 2, the others 4, 5, 6, nearly all of it in 2 and 6
    logits[0, 2], logits[1:, 6] = 60.0, 60.0
    logits[0, :2], logits[1:, 4:6] = -20.0, -20.0
    allowed = pool_by_mass(logits.softmax(-1), blocks(), 3, 1.0)
    assert as_sets(allowed)[0] == {0, 1, 2, 4, 5, 6}


@pytest.mark.parametrize(("capacity", "top_k"), [(4, 4), (5, 2), (7, 1), (13, 3), (99, 3)])
def test_block_routing_follows_its_formula(capacity: int, top_k: int) -> None:
    logits = random_logits(capacity)
    bias = torch.randn(EXPERTS, generator=torch.Generator().manual_seed(1)) * 0.3
    weights, ids = route_block(logits, bias, blocks(), capacity, top_k, 2.5)
    scores = 1 / (1 + np.exp(-logits.double().numpy()))
    choice = scores + bias.double().numpy()
    for row in range(len(NUMBERS)):
        chosen = best(choice[row], top_k, maximum_pool(choice, row, capacity))
        total = scores[row, chosen].sum() + 1e-20 if top_k > 1 else 1.0
        assert ids[row].tolist() == chosen
        want = 2.5 * scores[row, chosen] / total
        np.testing.assert_allclose(weights[row].numpy(), want, rtol=1e-5)


def test_equal_scores_inside_a_pool_go_to_lower_experts() -> None:
    weights, ids = route_block(torch.zeros(12, 40), torch.zeros(40), blocks(), 9, 3, 1.0)
    assert ids.tolist() == [[0, 1, 2]] * 12
    torch.testing.assert_close(weights, torch.full((12, 3), 1 / 3))


def test_a_pool_of_all_experts_is_plain_routing() -> None:
    logits, bias = random_logits(3), random_logits(4)[0] * 0.1
    plain_weights, plain_ids = route_groups(logits, bias, 4, 1, 1, 1.5)
    weights, ids = route_block(logits, bias, blocks(), EXPERTS, 4, 1.5)
    assert torch.equal(ids, plain_ids)
    torch.testing.assert_close(weights, plain_weights)
    everything = pool_by_mass(logits.softmax(-1), blocks(), 4, 1.0)
    for allowed in (torch.ones_like(logits, dtype=torch.bool), everything):
        weights, ids = route_inside(logits, allowed, 4)
        plain_weights, plain_ids = route(logits, 4)
        assert torch.equal(ids, plain_ids)
        torch.testing.assert_close(weights, plain_weights)


def test_weights_inside_a_pool_are_of_its_experts_alone() -> None:
    logits = random_logits(5)
    allowed = pool_by_maximum(logits.softmax(-1), blocks(), 4)
    weights, ids = route_inside(logits, allowed, 3)
    shares = logits.double().softmax(-1).numpy()
    for row in range(len(NUMBERS)):
        chosen = best(shares[row], 3, maximum_pool(shares, row, 4))
        assert ids[row].tolist() == chosen
        want = shares[row, chosen] / shares[row, chosen].sum()
        np.testing.assert_allclose(weights[row].numpy(), want, rtol=1e-5)


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_other_blocks_change_nothing(share: float) -> None:
    logits = torch.cat([random_logits(seed, 31) for seed in range(30)])
    numbers = torch.cat(
        [torch.where(blocks().numbers < 0, -1, blocks().numbers + 4 * i) for i in range(30)]
    )
    together = RowBlocks(numbers, 120)
    shares = logits.softmax(-1)
    mass = pool_by_mass(shares, together, 5, share)
    highest = pool_by_maximum(shares, together, 9)
    for i in range(30):
        rows = slice(12 * i, 12 * i + 12)
        assert torch.equal(pool_by_mass(shares[rows], blocks(), 5, share), mass[rows])
        assert torch.equal(pool_by_maximum(shares[rows], blocks(), 9), highest[rows])
        # the order of a block's rows does not matter either
        backwards = RowBlocks(blocks().numbers.flip(0), 4)
        flipped = pool_by_mass(shares[rows].flip(0), backwards, 5, share)
        assert torch.equal(flipped.flip(0), mass[rows])
