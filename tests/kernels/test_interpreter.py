"""The mended interpreter computes with true bfloat16 numbers. Run: pytest tests/kernels"""

import pytest
import torch
import triton
import triton.language as tl

from blockdiff_kernels.launch import IS_INTERPRETED, launch
from tests.kernels.errors import relative_error

N = 16


@triton.jit
def _bf16_kernel(a, b, product, total, arithmetic, best, N: tl.constexpr):
    o = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    b_a, b_b = tl.load(a + o), tl.load(b + o)
    tl.store(product + o, tl.dot(b_a, b_b))
    tl.store(arithmetic + o, tl.where(b_a < b_b, b_a * b_b + b_a, -b_b))
    tl.store(total + tl.arange(0, N), tl.sum(b_a, 1))
    values, places = tl.max(b_a, 1, return_indices=True)
    tl.store(best + tl.arange(0, N), places)


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30])
def test_bfloat16_is_computed_not_its_bits(scale: float) -> None:
    assert IS_INTERPRETED
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(N, N, generator=generator).bfloat16() for _ in range(2))
    a = a * scale
    product, arithmetic = torch.empty(N, N), torch.empty_like(a)
    total, best = a.new_empty(N), torch.empty(N, dtype=torch.int32)
    found = {"a": a, "b": b, "product": product, "total": total}
    found |= {"arithmetic": arithmetic, "best": best, "N": N}
    launch(_bf16_kernel, (1,), found)
    assert relative_error(product, a.double() @ b.double()) < 1e-6
    assert torch.equal(arithmetic, torch.where(a < b, a * b + a, -b))
    assert relative_error(total, a.double().sum(1)) < 1e-2
    assert torch.equal(best.long(), a.argmax(1))


@triton.jit
def _condition_kernel(x, y, n, N: tl.constexpr):
    o = tl.arange(0, N)
    is_first = tl.program_id(0) < n
    tl.store(y + o, tl.load(x + o, mask=(o < N - 1) & is_first, other=0.0), mask=is_first | (o < 2))


def test_a_scalar_condition_joins_those_of_a_tile() -> None:
    x = torch.ones(N)
    for n, expected in ((1, [1.0] * (N - 1) + [0.0]), (0, [0.0] * 2 + [7.0] * (N - 2))):
        y = torch.full((N,), 7.0)
        launch(_condition_kernel, (1,), {"x": x, "y": y, "n": n, "N": N})
        assert y.tolist() == expected


def test_rounding_is_to_the_nearest_even() -> None:
    from blockdiff_kernels.interpreter import narrow, widen

    values = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    values = torch.cat((values, torch.tensor([float("inf"), -0.0, 1.00390625, 1.01171875])))
    assert torch.equal(torch.from_numpy(widen(narrow(values.numpy()))), values.bfloat16().float())
