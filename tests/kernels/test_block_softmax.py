"""Preview mixer C against loops in float64. Run: pytest tests/kernels"""

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.block_softmax import block_softmax
from blockdiff_kernels.block_softmax.reference import block_probabilities


def loop(tensors: list[Tensor], vectors: list[Tensor]) -> Tensor:
    """Definition for one segment: q, k [T, Hk, dk], v [T, Hv, dv], state [Hv, dk, dv]."""
    q, k, v, state = (x.double() for x in tensors)
    scale, bias, slope = (x.double() for x in vectors)
    q, k = (x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    repeats = v.shape[1] // q.shape[1]
    outputs = torch.zeros_like(v)
    for i in range(q.shape[0]):
        for h in range(v.shape[1]):
            history = state[h].T @ (q[i, h // repeats] * q.shape[-1] ** -0.5)
            logits = [bias[h] + slope[h] * history.norm()]
            logits += [scale[h] * (q[i, h // repeats] @ k[j, h // repeats]) for j in range(len(k))]
            p = torch.stack(logits).softmax(0)
            outputs[i, h] = p[0] * history + p[1:] @ v[:, h]
    return outputs


def run(tensors: list[Tensor], vectors: list[Tensor], mask: Tensor | None = None) -> Tensor:
    q, k, v, state = tensors
    scale, bias, slope = vectors
    return block_softmax(q, k, v, state, scale, bias, slope, mask)


def inputs(groups: int, rows: int) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(rows)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    q, k = normal(2, groups, rows, 2, 6)
    vectors = [5 * normal(4), normal(4), normal(4)]
    return [q, k, normal(groups, rows, 4, 5), normal(groups, 4, 6, 5)], vectors


@pytest.mark.parametrize("rows", [1, 3, 16, 33])
def test_matches_the_loop(rows: int) -> None:
    tensors, vectors = inputs(2, rows)
    got = run(tensors, vectors)
    for i in range(2):
        want = loop([x[i] for x in tensors], vectors)
        torch.testing.assert_close(got[i].double(), want, atol=1e-5, rtol=1e-5)


def test_nan_padding_is_seen_by_nobody() -> None:
    tensors, vectors = inputs(3, 9)
    lengths = [9, 1, 4]
    mask = torch.arange(9) < torch.tensor(lengths).unsqueeze(1)
    for x in tensors[:3]:
        x[~mask] = float("nan")
    got = run(tensors, vectors, mask)
    for i, length in enumerate(lengths):
        want = loop([*(x[i, :length] for x in tensors[:3]), tensors[3][i]], vectors)
        torch.testing.assert_close(got[i, :length].double(), want, atol=1e-5, rtol=1e-5)


def test_equal_keys_share_the_weight_evenly() -> None:
    tensors, vectors = inputs(1, 8)
    tensors[1] = tensors[1][:, :1].expand(-1, 8, -1, -1)
    p, _ = block_probabilities(tensors[0], tensors[1], tensors[3], *vectors)
    torch.testing.assert_close(p[..., 1:], p[..., 1:2].expand(-1, -1, -1, 8))
    torch.testing.assert_close(p.sum(-1), torch.ones(1, 4, 8))


def test_empty_history_has_finite_gradients() -> None:
    tensors, vectors = inputs(1, 4)
    tensors[3].zero_()
    for x in (*tensors, *vectors):
        x.requires_grad_()
    loss = run(tensors, vectors).square().sum()
    gradients = torch.autograd.grad(loss, (*tensors, *vectors))
    assert all(g.isfinite().all() for g in gradients)
