"""The CPU's depthwise convolution, by its definition. Run: pytest tests/kernels/test_cpu_conv.py"""

import pytest
import torch
from torch.nn import functional

from blockdiff_kernels.conv import causal_conv, cpu, preview_conv, reference
from blockdiff_kernels.implementation import using

from .errors import assert_near

DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(1, 33, 2049, 4), (3, 40, 600, 7), (2, 1, 40000, 2)])
def test_large_inputs_as_defined(dtype: torch.dtype, sizes: tuple[int, int, int, int]) -> None:
    segments, rows, channels, taps = sizes
    torch.manual_seed(0)
    wide = torch.randn(segments, rows + taps - 1, channels + 5).to(dtype)
    weight = torch.randn(channels, taps).to(dtype)
    exact = functional.silu(
        functional.conv1d(
            wide[..., 5:].double().transpose(1, 2), weight.double().unsqueeze(1), groups=channels
        )
    ).transpose(1, 2)
    for extended in (wide[..., 5:], wide[..., 5:].contiguous()):
        assert extended.numel() > reference.SMALL
        found = cpu.depthwise(extended, weight)
        assert found.is_contiguous() and found.dtype == dtype
        assert_near(found, exact)


def test_small_inputs_keep_the_definition() -> None:
    extended, weight = torch.randn(2, 12, 20), torch.randn(20, 4)
    assert torch.equal(cpu.depthwise(extended, weight), reference.depthwise(extended, weight))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_convolutions_with_tails_agree(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    u, tail = torch.randn(3, 30, 900).to(dtype), torch.randn(3, 3, 900).to(dtype)
    weight, right = torch.randn(900, 4).to(dtype), torch.randn(900, 3).to(dtype)
    lengths = torch.tensor([30, 1, 17])
    mask = torch.arange(30) < lengths.unsqueeze(1)
    with using("reference"):
        plain = (*causal_conv(u, tail, weight, lengths), preview_conv(u, tail, weight, right, mask))
    fast = (*causal_conv(u, tail, weight, lengths), preview_conv(u, tail, weight, right, mask))
    for found, expected in zip(fast, plain, strict=True):
        assert_near(found, expected)
