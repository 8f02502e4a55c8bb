"""RMS norm kernels against float64. Run: pytest tests/kernels"""

import pytest
import torch

from blockdiff_kernels.implementation import using
from blockdiff_kernels.norm import plain_rms_norm, rms_norm, scaled_rms_norm
from tests.kernels.errors import assert_near

SHAPES = [(1, 1, 64), (5, 3, 33), (7, 1, 2100), (3, 20, 128)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype)
    weight = torch.randn(shape[1:], generator=generator).to(dtype)
    exact = x.double() * (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
    with using("triton"):
        assert_near(rms_norm(x, weight, 1e-6), exact * (1 + weight.double()))
        assert_near(scaled_rms_norm(x, weight, 1e-6), exact * weight.double())
        assert_near(plain_rms_norm(x, weight, 1e-6), exact * weight.double())
        assert_near(plain_rms_norm(x, None, 1e-6), exact)
        assert rms_norm(x[:0], weight, 1e-6).shape == x[:0].shape
        # heads that are part of wider rows, as a projection leaves them
        wide = torch.cat((x, x), dim=1)
        assert_near(rms_norm(wide[:, : shape[1]], weight, 1e-6), exact * (1 + weight.double()))
