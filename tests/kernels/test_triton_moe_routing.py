"""Routing kernels against the definition in float64. Run: pytest tests/kernels"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.coreset import RowBlocks
from blockdiff_kernels.implementation import using
from blockdiff_kernels.moe.fused import choose_experts, define_groups, define_routing
from blockdiff_kernels.moe.plan import RouterPlan, Routing, RowNorm
from blockdiff_kernels.moe.rules import MassPool, MaximumPool, Rule, Sigmoid, Softmax
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.projection.sources import Normed, Plain
from tests.kernels.errors import assert_near

HIDDEN, EXPERTS = 40, 24


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


BIAS = random(EXPERTS)
RULES: dict[str, Rule] = {
    "softmax": Softmax(3),
    "softmax-of-all": Softmax(2, is_normalised=False),
    "softmax-scaled": Softmax(4, expert_scale=random(EXPERTS, seed=5).abs()),
    "one": Softmax(1),
    "sigmoid": Sigmoid(3, BIAS, 2.5),
    "sigmoid-one": Sigmoid(1, BIAS, 2.5),
    "groups": Sigmoid(3, BIAS, 2.5, groups=4, kept_groups=2),
    "pool-maximum": Softmax(3, pool=MaximumPool(5)),
    "pool-of-all": Softmax(3, pool=MaximumPool(40)),
    "pool-mass": Softmax(2, pool=MassPool(0.6)),
    "pool-whole-mass": Softmax(2, pool=MassPool(1.0)),
    "pool-sigmoid": Sigmoid(3, BIAS, 2.5, pool=MaximumPool(6)),
}


def doubled(plan: RouterPlan) -> RouterPlan:
    own = plan.norm
    if own is not None and own.weight is not None:
        own = replace(own, weight=own.weight.double())
    return replace(plan, weight=plan.weight.double(), norm=own)


def wide(x: Tensor) -> Plain:
    return Plain(x.double())


def blocks_of(rows: int) -> RowBlocks:
    """Blocks of 3 rows; every fifth row is in none."""
    numbers = torch.arange(rows) // 3
    return RowBlocks(numbers.masked_fill(torch.arange(rows) % 5 == 4, -1), rows // 3 + 2)


def compare(found: Routing, exact: Routing, plan: RouterPlan, count: int) -> None:
    """Numbers of rows before ``count``, and where all entries lie."""
    assert torch.equal(found.ids, exact.ids)
    assert_near(found.weights, exact.weights, 2e-6)
    assert_near(found.rows[:count], exact.rows[:count])
    compare_groups(found, plan)


def compare_groups(found: Routing, plan: RouterPlan) -> None:
    own, exact = found.groups, define_groups(found.ids.long(), plan)
    entries = int(exact.offsets[-1])
    assert torch.equal(own.offsets, exact.offsets)
    assert torch.equal(own.inverse.sort().values, exact.inverse.sort().values)
    assert torch.equal(own.inverse, exact.inverse)
    assert torch.equal(own.rows[:entries], exact.rows[:entries])
    assert torch.equal(own.distinct, exact.distinct)
    covered = []
    for expert, start, stop in own.tiles.t().tolist():
        assert stop == 0 or 0 < stop - start <= own.tile_rows
        if stop:
            assert exact.offsets[expert] <= start and stop <= exact.offsets[expert + 1]
            covered += range(start, stop)
    assert covered == list(range(entries))


@pytest.mark.parametrize("name", RULES)
def test_rules(name: str) -> None:
    rows, rule = 21, RULES[name]
    plan = RouterPlan(random(EXPERTS, HIDDEN), rule, experts=EXPERTS)
    x, hits = random(rows, HIDDEN), torch.full((EXPERTS,), 7)
    with using("triton"):
        found = choose_experts(Plain(x), plan, blocks_of(rows), hits=hits)
    exact = define_routing(wide(x), doubled(plan), blocks_of(rows))
    compare(found, exact, plan, rows)
    assert torch.equal(hits - 7, torch.bincount(exact.ids.flatten(), minlength=EXPERTS))


NORMS = [NormKind.ZERO_CENTRED, NormKind.SCALED, NormKind.PLAIN]


@pytest.mark.parametrize("kind", NORMS, ids=str)
def test_norms_shared_experts_and_padding(kind: NormKind) -> None:
    rows, count = 37, 33
    weight = random(HIDDEN)
    own = RowNorm(random(HIDDEN, seed=9), 1e-5, NormKind.PLAIN) if kind != NormKind.PLAIN else None
    router = random(EXPERTS + 1, HIDDEN)
    plan = RouterPlan(router, Softmax(3), own, HIDDEN**-0.5, EXPERTS, shared=2)
    x = random(rows, HIDDEN) * 3
    exact_rows = Normed(x.double(), weight.double(), 1e-6, kind)
    exact = define_routing(exact_rows, doubled(plan), count=torch.tensor([count]))
    x[count:] = float("nan")
    with using("triton"):
        limit = torch.tensor([count], dtype=torch.int32)
        found = choose_experts(Normed(x, weight, 1e-6, kind), plan, count=limit)
    compare(found, exact, plan, count)
    assert (found.ids[count:] == EXPERTS + 2).all() and (found.groups.inverse[count:] < 0).all()


def test_no_rows_at_all() -> None:
    plan = RouterPlan(random(EXPERTS, HIDDEN), Softmax(2), experts=EXPERTS, shared=1)
    with using("triton"):
        found = choose_experts(
            Plain(random(5, HIDDEN)), plan, count=torch.zeros(1, dtype=torch.int32)
        )
    assert not found.groups.tiles[2].any() and not found.groups.distinct.any()
    compare_groups(found, plan)


@pytest.mark.parametrize("name", ["softmax", "groups", "pool-maximum", "pool-mass", "pool-sigmoid"])
def test_equal_scores_go_to_the_lower_number(name: str) -> None:
    router = random(1, HIDDEN).expand(EXPERTS, -1)
    rule = RULES[name]
    if isinstance(rule, Sigmoid):
        rule = replace(rule, bias=torch.zeros(EXPERTS))
    plan = RouterPlan(router.contiguous(), rule, experts=EXPERTS)
    with using("triton"):
        found = choose_experts(Plain(random(6, HIDDEN)), plan, RowBlocks(torch.zeros(6).long(), 1))
    assert torch.equal(found.ids, torch.arange(rule.top_k).expand(6, -1))


def test_experts_of_one_rank_and_choices_of_all() -> None:
    plan = RouterPlan(random(EXPERTS, HIDDEN), Softmax(4), experts=EXPERTS, shared=1, span=(6, 12))
    x, hits = random(70, HIDDEN), torch.zeros(EXPERTS, dtype=torch.int64)
    with using("triton"):
        found = choose_experts(Plain(x), plan, hits=hits)
    compare(found, define_routing(wide(x), doubled(plan)), plan, 70)
    assert hits.sum() == 280 and found.groups.offsets[-1] < 280


def test_rows_with_nan_harm_no_others() -> None:
    plan = RouterPlan(random(EXPERTS, HIDDEN), RULES["groups"], experts=EXPERTS)
    x = random(9, HIDDEN)
    exact = define_routing(wide(x), doubled(plan))
    x[4] = float("nan")
    with using("triton"):
        found = choose_experts(Plain(x), plan)
    keep = torch.arange(9) != 4
    assert torch.equal(found.ids[keep], exact.ids[keep])
    assert (found.groups.inverse < found.groups.offsets[-1]).all()
    assert (found.groups.rows[: found.groups.offsets[-1]] < 9).all()


def test_256_experts_in_bfloat16() -> None:
    bias = random(256) / 10
    rule = Sigmoid(8, bias, 2.5, groups=8, kept_groups=4)
    weight, kind = random(64).bfloat16(), NormKind.SCALED
    plan = RouterPlan(random(256, 64).bfloat16(), rule, experts=256)
    x = random(18, 64).bfloat16()
    with using("triton"):
        found = choose_experts(Normed(x, weight, 1e-6, kind), plan)
    exact = define_routing(Normed(x.double(), weight.double(), 1e-6, kind), doubled(plan))
    # rounding moves an expert over the cut only where scores nearly agree
    same = (found.ids.sort().values == exact.ids.sort().values).all(1)
    assert same.sum() >= 15
    order, wanted = found.ids.argsort(), exact.ids.argsort()
    assert_near(found.weights.gather(1, order)[same], exact.weights.gather(1, wanted)[same], 8e-3)
    assert_near(found.rows, exact.rows)
    compare_groups(found, plan)
