"""Block-causal visibility, grouped sigmoid routing and plain norms against loops.

Run: pytest tests/kernels
"""

import pytest
import torch

import blockdiff_kernels.moe as op
from blockdiff_kernels.attention import visibility
from blockdiff_kernels.moe import experts, route_groups
from blockdiff_kernels.norm import scaled_rms_norm


def test_visibility_by_blocks() -> None:
    contexts, lengths, blocks = (torch.tensor(x) for x in ([0, 8, 6], [6, 4, 5], [4, 4, 3]))
    got = visibility(contexts, lengths, 6, 8, True, blocks)[:, 0]
    for g in range(3):
        start, block = int(contexts[g]), int(blocks[g])
        for i in range(int(lengths[g])):
            past = [j < start for j in range(8)]
            own = [
                j < lengths[g] and (start + j) // block <= (start + i) // block for j in range(6)
            ]
            assert got[g, i].tolist() == past + own


def test_blocks_of_one_are_causal() -> None:
    contexts, lengths = torch.tensor([0, 3]), torch.tensor([5, 2])
    ones = torch.ones(2, dtype=torch.int64)
    by_blocks = visibility(contexts, lengths, 5, 3, True, ones)
    assert torch.equal(by_blocks, visibility(contexts, lengths, 5, 3, True))


@pytest.mark.parametrize(("groups", "kept", "top_k"), [(4, 2, 4), (1, 1, 3), (3, 3, 1), (6, 1, 2)])
def test_route_groups_follows_its_definition(groups: int, kept: int, top_k: int) -> None:
    generator = torch.Generator().manual_seed(groups)
    logits = torch.randn(7, 12, generator=generator)
    bias = torch.randn(12, generator=generator)
    weights, ids = route_groups(logits, bias, top_k, groups, kept, 2.5)
    size = 12 // groups
    for row in range(7):
        scores = logits[row].double().sigmoid()
        choice = scores + bias.double()
        rank = [
            float(choice[g * size : (g + 1) * size].topk(2).values.sum()) for g in range(groups)
        ]
        best = sorted(range(groups), key=lambda g: -rank[g])[:kept]
        places = [e for g in best for e in range(g * size, (g + 1) * size)]
        chosen = sorted(places, key=lambda e: -float(choice[e]))[:top_k]
        total = float(scores[chosen].sum()) + 1e-20 if top_k > 1 else 1.0
        want = {e: 2.5 * float(scores[e]) / total for e in chosen}
        got = dict(zip(ids[row].tolist(), weights[row].tolist(), strict=True))
        assert got == pytest.approx(want, rel=1e-5)


def test_dense_and_grouped_experts_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = ((5, 10), (6, 8, 10), (6, 4, 10), (5, 6))
    x, gate_up, down, scores = (torch.randn(shape, generator=generator) for shape in shapes)
    weights, ids = scores.topk(3, dim=1)
    dense = experts(x, weights, ids, gate_up, down)
    monkeypatch.setattr(op, "DENSE_EXPERTS", 0)
    torch.testing.assert_close(dense, experts(x, weights, ids, gate_up, down))


def test_scaled_norm_is_not_zero_centred() -> None:
    x, weight = torch.randn(3, 4, 8), torch.randn(4, 8)
    want = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    torch.testing.assert_close(scaled_rms_norm(x, weight, 1e-6), want.float())
    assert scaled_rms_norm(x.bfloat16(), weight, 1e-6).dtype == torch.bfloat16
