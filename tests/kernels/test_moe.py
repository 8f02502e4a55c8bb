"""Routing and experts against loops in float64. Run: pytest tests/kernels"""

import pytest
import torch
from torch import Tensor

import blockdiff_kernels.moe as op
from blockdiff_kernels.moe import all_experts, experts, route, weigh_with_shared, with_shared

HIDDEN, INNER, EXPERTS, TOP_K, SHARED = 10, 6, 5, 2, 2


def loop(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Definition, one row at a time."""
    x, router, gate_up, down = (t.double() for t in (x, router, gate_up, down))
    rows = []
    for row in x:
        p = (router[:EXPERTS] @ row).softmax(0)
        chosen = p.topk(TOP_K)
        weights = dict(
            zip(chosen.indices.tolist(), chosen.values / chosen.values.sum(), strict=True)
        )
        shared = (router[EXPERTS] @ row).sigmoid()
        weights |= {EXPERTS + i: shared for i in range(SHARED)}
        y = torch.zeros_like(row)
        for expert, weight in weights.items():
            gate, up = (gate_up[expert] @ row).chunk(2)
            y = y + weight * ((gate * gate.sigmoid() * up) @ down[expert])
        rows.append(y)
    return torch.stack(rows)


def run(tensors: list[Tensor]) -> Tensor:
    x, router, gate_up, down = tensors
    routing, gate = (x @ router.t()).split_with_sizes((EXPERTS, 1), dim=1)
    if op.prefers_all_experts(x.shape[0], down):
        weights = weigh_with_shared(routing, gate, TOP_K, EXPERTS + SHARED)
        return all_experts(x, weights, gate_up, down)
    weights, ids = route(routing, TOP_K)
    weights, ids = with_shared(weights, ids, gate, EXPERTS, EXPERTS + SHARED)
    return experts(x, weights, ids, gate_up, down)


def inputs(rows: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rows)
    shapes = [
        (rows, HIDDEN),
        (EXPERTS + 1, HIDDEN),
        (EXPERTS + SHARED, 2 * INNER, HIDDEN),
        (EXPERTS + SHARED, INNER, HIDDEN),
    ]
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.fixture(params=[0, 1 << 20], ids=["grouped", "dense"], autouse=True)
def route_taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both formulations answer the same tests."""
    monkeypatch.setattr(op, "DENSE_FLOPS", request.param)


@pytest.mark.parametrize("rows", [1, 2, 17, 64])
def test_matches_the_loop(rows: int) -> None:
    tensors = inputs(rows)
    got = run(tensors)
    torch.testing.assert_close(got.double(), loop(*tensors), atol=1e-4, rtol=1e-4)


def test_all_rows_on_the_same_experts_leaves_the_others_empty() -> None:
    tensors = inputs(9)
    tensors[0] = tensors[0][:1].repeat(9, 1)
    # nobody may even touch the weights of an expert without rows, so nan there must not matter
    _, ids = route(tensors[0] @ tensors[1][:EXPERTS].t(), TOP_K)
    idle = [e for e in range(EXPERTS) if e not in set(ids.flatten().tolist())]
    want = loop(*tensors)
    if op.DENSE_FLOPS == 0:
        tensors[2][idle] = float("nan")
    got = run(tensors)
    torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-4)


def test_experts_that_are_elsewhere_add_nothing() -> None:
    x, _, gate_up, down = inputs(6)
    total = EXPERTS + SHARED
    ids = torch.tensor([[0, total], [total, total], [3, 1], [total, 6], [2, total], [total, total]])
    weights = torch.rand(6, 2, generator=torch.Generator().manual_seed(5))
    got = experts(x, weights, ids, gate_up, down)
    here = torch.where(ids < total, weights, 0.0)
    clamped = ids.clamp(max=total - 1)
    want = torch.zeros_like(x)
    for column in range(2):
        only = experts(
            x, here[:, column : column + 1], clamped[:, column : column + 1], gate_up, down
        )
        want = want + only
    torch.testing.assert_close(got, want)
    assert not got[[1, 5]].any()


def test_gradients_reach_router_and_chosen_experts() -> None:
    tensors = inputs(12)
    for x in tensors:
        x.requires_grad_()
    gradients = torch.autograd.grad(run(tensors).square().sum(), tensors)
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)


def test_route_is_the_renormalised_softmax() -> None:
    logits = torch.randn(7, 16, generator=torch.Generator().manual_seed(3)) * 30
    weights, ids = route(logits, 4)
    p = logits.double().softmax(-1).gather(1, ids)
    torch.testing.assert_close(weights.double(), p / p.sum(-1, keepdim=True), atol=1e-6, rtol=1e-5)


def test_route_without_division_is_the_softmax_of_all() -> None:
    logits = torch.randn(7, 16, generator=torch.Generator().manual_seed(3)) * 3
    weights, ids = route(logits, 4, is_normalised=False)
    assert torch.equal(ids, route(logits, 4)[1])
    p = logits.double().softmax(-1).gather(1, ids)
    torch.testing.assert_close(weights.double(), p, atol=1e-6, rtol=1e-5)
