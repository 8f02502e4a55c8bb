"""Depthwise convolutions against loops in float64. Run: pytest tests/kernels"""

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.conv import causal_conv, mirrored_taps, preview_conv, reference


def loop(u: Tensor, tail: Tensor, weight: Tensor, right: Tensor | None) -> Tensor:
    """Definition, one row at a time, for one segment: u [T, C], tail [k-1, C]."""
    kernel = weight.shape[1]
    past = torch.cat((tail, u)).double()
    rows = []
    for t in range(u.shape[0]):
        y = torch.stack([weight[:, j].double() * past[t + j] for j in range(kernel)]).sum(0)
        for d in range(1, 1 + (0 if right is None else right.shape[1])):
            if right is not None and t + d < u.shape[0]:
                y = y + right[:, d - 1].double() * u[t + d].double()
        rows.append(y * torch.sigmoid(y))
    return torch.stack(rows)


@pytest.fixture(params=[0, 1 << 30], ids=["convolution", "windows"], autouse=True)
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both routes of the reference answer the same tests."""
    monkeypatch.setattr(reference, "SMALL", request.param)


def inputs(rows: int, kernel: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    u = torch.randn(3, rows, 5, generator=generator)
    tail = torch.randn(3, kernel - 1, 5, generator=generator)
    weight = torch.randn(5, kernel, generator=generator)
    return u, tail, weight, torch.randn(5, kernel - 1, generator=generator)


@pytest.mark.parametrize(("rows", "kernel"), [(1, 4), (2, 4), (17, 4), (9, 2)])
def test_causal_and_preview_match_the_loop(rows: int, kernel: int) -> None:
    u, tail, weight, right = inputs(rows, kernel)
    y, new_tail = causal_conv(u, tail, weight)
    preview = preview_conv(u, tail, weight, right)
    for g in range(3):
        want = loop(u[g], tail[g], weight, None)
        torch.testing.assert_close(y[g].double(), want, atol=1e-5, rtol=1e-5)
        assert torch.equal(new_tail[g], torch.cat((tail[g], u[g]))[-(kernel - 1) :])
        want = loop(u[g], tail[g], weight, right)
        torch.testing.assert_close(preview[g].double(), want, atol=1e-5, rtol=1e-5)


def test_nan_padding_reaches_neither_rows_nor_tail() -> None:
    u, tail, weight, right = inputs(9, 4)
    lengths = torch.tensor([9, 4, 1])
    mask = torch.arange(9) < lengths.unsqueeze(1)
    poisoned = u.masked_fill(~mask.unsqueeze(-1), float("nan"))
    y, new_tail = causal_conv(poisoned, tail, weight, lengths)
    preview = preview_conv(poisoned, tail, weight, right, mask)
    for g, length in enumerate(lengths.tolist()):
        part = u[g, :length]
        want = loop(part, tail[g], weight, None)
        torch.testing.assert_close(y[g, :length].double(), want, atol=1e-5, rtol=1e-5)
        assert torch.equal(new_tail[g], torch.cat((tail[g], part))[-3:])
        want = loop(part, tail[g], weight, right)
        torch.testing.assert_close(preview[g, :length].double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("rows", "kernel"), [(1, 4), (2, 4), (17, 4), (9, 2)])
def test_mirrored_taps_add_the_reversed_convolution_without_its_centre(
    rows: int, kernel: int
) -> None:
    u, tail, weight, _ = inputs(rows, kernel)
    got = preview_conv(u, tail, weight, mirrored_taps(weight))
    past = torch.cat((tail, u), dim=1).double()
    ahead = torch.cat((torch.zeros_like(tail), u.flip(1)), dim=1).double()

    def correlate(x: Tensor) -> Tensor:
        return torch.stack(
            [(x[:, t : t + kernel] * weight.double().t()).sum(1) for t in range(rows)], dim=1
        )

    centre = u.double() * weight[:, -1].double()
    want = correlate(past) + correlate(ahead).flip(1) - centre
    torch.testing.assert_close(got.double(), want * want.sigmoid(), atol=1e-5, rtol=1e-5)
