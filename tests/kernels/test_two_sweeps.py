"""Forward and backward gated delta sweeps against a loop in float64. Run: pytest tests/kernels"""

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.gated_delta import gated_delta, two_sweeps


def step(state: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """alpha (I - beta k k^T) S + beta k v^T for one head."""
    shrink = torch.eye(len(key), dtype=state.dtype) - beta * torch.outer(key, key)
    return g.exp() * (shrink @ state) + beta * torch.outer(key, value)


def loop(tensors: list[Tensor]) -> Tensor:
    """Definition for one segment: q, k [T, Hk, dk], v [T, Hv, dv], g, beta [T, Hv], S0 [Hv, ..]."""
    q, k, v, g, beta, first = (x.double() for x in tensors)
    q, k = (x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    rows, heads = g.shape
    repeats, outputs = heads // k.shape[1], torch.zeros_like(v)
    for h in range(heads):
        own = h // repeats
        after = [torch.zeros_like(first[h])]
        for t in reversed(range(1, rows)):
            after.append(step(after[-1], k[t, own], v[t, h], g[t, h], beta[t, h]))
        after.reverse()
        state = first[h]
        for t in range(rows):
            state = step(state, k[t, own], v[t, h], g[t, h], beta[t, h])
            outputs[t, h] = (state + after[t]).T @ q[t, own] * q.shape[-1] ** -0.5
    return outputs


def inputs(groups: int, rows: int, key_heads: int = 2) -> list[Tensor]:
    """q, k, v, g, beta, state with heads of 6 x 5 and twice as many value heads."""
    generator = torch.Generator().manual_seed(rows)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    heads = 2 * key_heads
    g, beta = -normal(groups, rows, heads).abs(), normal(groups, rows, heads).sigmoid()
    q, k = normal(2, groups, rows, key_heads, 6)
    return [q, k, normal(groups, rows, heads, 5), g, beta, normal(groups, heads, 6, 5)]


def run(tensors: list[Tensor], mask: Tensor | None = None, chunk: int = 64) -> Tensor:
    q, k, v, g, beta, state = tensors
    return two_sweeps(q, k, v, g, beta, state, mask, chunk)


def check(tensors: list[Tensor], lengths: list[int], got: Tensor) -> None:
    for i, length in enumerate(lengths):
        want = loop([*(x[i, :length] for x in tensors[:5]), tensors[5][i]])
        torch.testing.assert_close(got[i, :length].double(), want, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 7, 32, 65])
@pytest.mark.parametrize("chunk", [8, 64])
def test_matches_the_loop(rows: int, chunk: int) -> None:
    tensors = inputs(2, rows)
    check(tensors, [rows, rows], run(tensors, chunk=chunk))


def test_three_key_heads() -> None:
    tensors = inputs(1, 9, key_heads=3)
    check(tensors, [9], run(tensors))


def test_empty_history() -> None:
    tensors = inputs(1, 5)
    tensors[5].zero_()
    check(tensors, [5], run(tensors))


@pytest.mark.parametrize("chunk", [4, 64])
def test_nan_padding_changes_nothing(chunk: int) -> None:
    tensors, lengths = inputs(4, 11), [11, 1, 4, 10]
    mask = torch.arange(11) < torch.tensor(lengths).unsqueeze(1)
    for x in tensors[:5]:
        x[~mask] = float("nan")
    got = run(tensors, mask, chunk)
    check(tensors, lengths, got)


def test_one_row_is_the_causal_scan() -> None:
    q, k, v, g, beta, state = inputs(3, 1)
    before = state.clone()
    want, _ = gated_delta(q, k, v, g, beta, state)
    torch.testing.assert_close(two_sweeps(q, k, v, g, beta, state), want)
    assert torch.equal(state, before)


def test_the_last_row_reaches_the_first_and_the_last_sees_the_causal_scan() -> None:
    tensors = inputs(1, 6)
    got = run(tensors)
    q, k, v, g, beta, state = tensors
    torch.testing.assert_close(got[:, -1], gated_delta(q, k, v, g, beta, state)[0][:, -1])
    tensors[2][:, -1] += 1
    assert (run(tensors)[:, 0] - got[:, 0]).abs().max() > 1e-3


def test_gradient_matches_the_loop() -> None:
    tensors = [x.double().requires_grad_() for x in inputs(1, 6)]
    got = torch.autograd.grad(run(tensors, chunk=4).square().sum(), tensors)
    want = torch.autograd.grad(loop([x[0] for x in tensors]).square().sum(), tensors)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("rows", [9, 11, 17])
def test_narrow_heads_have_the_same_bits_alone_and_among_others(rows: int) -> None:
    """Matrices of 9 rows of 4 numbers would begin anywhere in a line of memory."""
    torch.manual_seed(rows)
    size = (16, rows, 2)
    q, k, v = (torch.randn(*size, 4) for _ in range(3))
    gates = (-torch.rand(size), torch.rand(size))
    tensors = [q, k, v, *gates, torch.randn(16, 2, 4, 4)]
    together = two_sweeps(*tensors)
    alone = torch.cat([two_sweeps(*(t[i : i + 1].clone() for t in tensors)) for i in range(16)])
    assert torch.equal(together, alone)
