"""Operations of canvas decoders against loops and float64 formulas. Run: pytest tests/kernels"""

import math

import pytest
import torch

from blockdiff_kernels.attention import attention, window_visibility
from blockdiff_kernels.head import logits
from blockdiff_kernels.moe import all_experts, experts, gated, route_scaled
from blockdiff_kernels.norm import plain_rms_norm
from blockdiff_kernels.rope import apply_rope, proportional_angles
from blockdiff_kernels.self_conditioning import expected_embedding


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("window", [2, 3, 8, 40])
@pytest.mark.parametrize("cached", [0, 1, 7])
@pytest.mark.parametrize("causal", [True, False], ids=["encoder", "canvas"])
def test_window_visibility(causal: bool, cached: int, window: int) -> None:
    contexts, lengths, rows = [0, 3, 9], [4, 6, 1], 6
    got = window_visibility(
        torch.tensor(contexts), torch.tensor(lengths), rows, cached, causal, window
    )
    assert got.shape == (3, 1, rows, cached + rows)
    for g, (context, length) in enumerate(zip(contexts, lengths, strict=True)):
        for row in range(length):
            for key in range(cached + rows):
                place = context - cached + key
                exists = 0 <= place < context + length
                if causal:
                    near = context + row - window < place <= context + row
                else:
                    near = place > context - window
                assert bool(got[g, 0, row, key]) == (exists and near), (g, row, key)


def test_attention_with_a_factor() -> None:
    q, k, v = random(2, 3, 4, 6), random(2, 3, 2, 6, seed=1), random(2, 3, 2, 6, seed=2)
    # two segments of one page each
    past_k, past_v = random(2, 2, 5, 6, seed=3), random(2, 2, 5, 6, seed=4)
    pages = torch.tensor([[0], [1]])
    visible = torch.ones(2, 1, 3, 8, dtype=torch.bool)
    got = attention(q, k, v, past_k, past_v, pages, visible, None, 1.0)
    keys = torch.cat((past_k.transpose(0, 1), k.transpose(1, 2)), dim=2).double()
    values = torch.cat((past_v.transpose(0, 1), v.transpose(1, 2)), dim=2).double()
    for head in range(4):
        scores = q[:, :, head].double() @ keys[:, head // 2].transpose(1, 2)
        want = scores.softmax(-1) @ values[:, head // 2]
        torch.testing.assert_close(got[:, :, head].double(), want, atol=1e-5, rtol=1e-5)


def test_proportional_angles_turn_the_first_pairs_over_the_whole_head() -> None:
    head_dim, pairs, theta = 16, 3, 100.0
    x, positions = random(2, 1, head_dim), torch.tensor([1, 50])
    got = apply_rope(x, *proportional_angles(positions, head_dim, pairs, theta)).double()
    for row, position in enumerate(positions.tolist()):
        for i in range(head_dim // 2):
            angle = position * theta ** (-2 * i / head_dim) if i < pairs else 0.0
            first, second = x[row, 0, i].double(), x[row, 0, i + head_dim // 2].double()
            want = first * math.cos(angle) - second * math.sin(angle)
            torch.testing.assert_close(got[row, 0, i], want, atol=1e-5, rtol=1e-5)
            want = second * math.cos(angle) + first * math.sin(angle)
            torch.testing.assert_close(got[row, 0, i + 8], want, atol=1e-5, rtol=1e-5)


def test_plain_norm_scales_in_float32() -> None:
    x, weight = random(4, 33), random(33, seed=1)
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    bare = plain_rms_norm(x, None, 1e-6)
    torch.testing.assert_close(bare.double(), exact, atol=1e-5, rtol=1e-5)
    scaled = plain_rms_norm(x, weight, 1e-6).double()
    torch.testing.assert_close(scaled, exact * weight, atol=1e-5, rtol=1e-5)
    # one rounding to bfloat16, at the end
    small, small_weight = x.bfloat16(), weight.bfloat16()
    want = plain_rms_norm(small.float(), small_weight.float(), 1e-6).bfloat16()
    assert torch.equal(plain_rms_norm(small, small_weight, 1e-6), want)


@pytest.mark.parametrize("top_k", [1, 3, 5])
def test_scaled_routing(top_k: int) -> None:
    scores, scale = random(6, 5), random(5, seed=1)
    weights, ids = route_scaled(scores, scale, top_k)
    for row in range(6):
        p = scores[row].double().softmax(0)
        best = p.topk(top_k)
        assert ids[row].tolist() == best.indices.tolist()
        want = best.values / best.values.sum() * scale[best.indices]
        torch.testing.assert_close(weights[row].double(), want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("rows", [3, 140], ids=["dense", "grouped"])
def test_experts_of_either_activation(rows: int, activation: str) -> None:
    x, gate_up, down = random(rows, 8), random(4, 12, 8, seed=1), random(4, 6, 8, seed=2)
    weights, ids = route_scaled(random(rows, 4, seed=3), torch.ones(4), 2)
    got = experts(x, weights, ids, gate_up, down, activation)
    want = torch.zeros(rows, 8, dtype=torch.float64)
    for row in range(rows):
        for weight, expert in zip(weights[row].double(), ids[row].tolist(), strict=True):
            gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
            if activation == "silu":
                act = gate * gate.sigmoid()
            else:
                inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
                act = 0.5 * gate * (1 + inner.tanh())
            torch.testing.assert_close(
                gated(gate, up, activation), act * up, atol=1e-12, rtol=1e-12
            )
            want[row] += weight * ((act * up) @ down[expert].double())
    torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-4)
    every = torch.zeros(rows, 4).scatter(1, ids, weights)
    same = all_experts(x, every, gate_up, down, activation)
    torch.testing.assert_close(same, got, atol=1e-4, rtol=1e-4)


def test_soft_cap() -> None:
    hidden, weight = 20 * random(5, 6), random(30, 6, seed=1)
    want = 30 * (hidden.double() @ weight.double().t() / 30).tanh()
    torch.testing.assert_close(logits(hidden, weight, 30.0).double(), want, atol=1e-4, rtol=1e-4)


def test_expected_embedding() -> None:
    scores, embedding = 5 * random(4, 20), random(20, 6, seed=1)
    want = 3.0 * (scores.double().softmax(1) @ embedding.double())
    got = expected_embedding(scores, embedding, 3.0)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)
    assert expected_embedding(scores, embedding.bfloat16(), 3.0).dtype == torch.bfloat16
