"""Chunked gated delta rule against the recurrence in float64. Run: pytest tests/kernels"""

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.gated_delta import decay_and_beta, gated_delta


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Definition for one segment, one row at a time: q, k [T, Hk, dk], v [T, Hv, dv]."""
    q, k, v, g, beta, state = (x.double() for x in (q, k, v, g, beta, state))
    repeats = v.shape[1] // q.shape[1]
    q, k = (x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    states, outputs = list(state), []
    for t in range(q.shape[0]):
        row = []
        for h in range(v.shape[1]):
            key, query = k[t, h // repeats], q[t, h // repeats] * q.shape[-1] ** -0.5
            decayed = states[h] * g[t, h].exp()
            update = torch.outer(key, beta[t, h] * (v[t, h] - decayed.T @ key))
            states[h] = decayed + update
            row.append(states[h].T @ query)
        outputs.append(torch.stack(row))
    return torch.stack(outputs), torch.stack(states)


def inputs(groups: int, rows: int, seed: int = 0) -> list[Tensor]:
    """q, k, v, g, beta, state with 2 key heads of 6 and 4 value heads of 5."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    g, beta = -normal(groups, rows, 4).abs(), normal(groups, rows, 4).sigmoid()
    q, k = normal(2, groups, rows, 2, 6)
    return [q, k, normal(groups, rows, 4, 5), g, beta, normal(groups, 4, 6, 5)]


def run(tensors: list[Tensor], chunk: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    q, k, v, g, beta, state = tensors
    return gated_delta(q, k, v, g, beta, state, mask, chunk)


def check(tensors: list[Tensor], chunk: int, mask: Tensor | None = None) -> None:
    outputs, state = run(tensors, chunk, mask)
    for i in range(outputs.shape[0]):
        length = outputs.shape[1] if mask is None else int(mask[i].sum())
        q, k, v, g, beta = (x[i, :length] for x in tensors[:5])
        want, want_state = recurrence(q, k, v, g, beta, tensors[5][i])
        torch.testing.assert_close(outputs[i, :length].double(), want, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(state[i].double(), want_state, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 63, 64, 65, 130])
@pytest.mark.parametrize("chunk", [8, 64])
def test_matches_the_recurrence(rows: int, chunk: int) -> None:
    check(inputs(2, rows, rows), chunk)


@pytest.mark.parametrize("chunk", [4, 64])
def test_nan_padding_changes_nothing(chunk: int) -> None:
    tensors = inputs(4, 11)
    mask = torch.arange(11) < torch.tensor([11, 1, 4, 10]).unsqueeze(1)
    for x in tensors[:5]:
        x[~mask] = float("nan")
    check(tensors, chunk, mask)


@pytest.mark.parametrize("strength", [1.0, 0.8])
def test_equal_keys_without_decay_stay_exact(strength: float) -> None:
    """Runs of one repeated token: a truncated series for the inverse would be off by orders."""
    tensors = inputs(1, 64)
    tensors[1] = tensors[1][:, :1].expand(-1, 64, -1, -1).contiguous()
    tensors[3].zero_()
    tensors[4].fill_(strength)
    check(tensors, 64)


def test_strong_decay_does_not_overflow() -> None:
    tensors = inputs(1, 64)
    tensors[3].fill_(-20.0)
    outputs, state = run(tensors, 64)
    assert outputs.isfinite().all() and state.isfinite().all()
    check(tensors, 64)


def test_state_is_not_written_and_gradients_flow() -> None:
    tensors = inputs(1, 9)
    before = tensors[5].clone()
    for x in tensors:
        x.requires_grad_()
    outputs, state = run(tensors, 4)
    gradients = torch.autograd.grad(outputs.sum() + state.sum(), tensors)
    assert torch.equal(tensors[5], before)
    assert all(g.isfinite().all() for g in gradients)


def test_gradient_matches_the_recurrence() -> None:
    tensors = [x.double().requires_grad_() for x in inputs(1, 6)]
    outputs, state = run(tensors, 4)
    got = torch.autograd.grad((outputs.square().sum() + state.sum()), tensors)
    want_outputs, want_state = recurrence(*(x[0] for x in tensors))
    want = torch.autograd.grad((want_outputs.square().sum() + want_state.sum()), tensors)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_gates() -> None:
    a, b = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    a_log, dt_bias = torch.tensor([[0.0, 1, -1, 2], [0.5, 0, 1, -2]])
    g, beta = decay_and_beta(a, b, a_log, dt_bias)
    torch.testing.assert_close(g, -a_log.exp() * (1 + (a + dt_bias).exp()).log())
    torch.testing.assert_close(beta, 1 / (1 + (-b).exp()))
