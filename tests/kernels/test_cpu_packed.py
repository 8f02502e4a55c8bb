"""Packed products against the float64 definition. Run: pytest tests/kernels/test_cpu_packed.py"""

import pytest
import torch

from blockdiff_kernels.head import logits
from blockdiff_kernels.packed import is_packed, is_worth_packing, pack, packed_linear, unpack

from .errors import assert_near

DTYPES = (torch.float32, torch.bfloat16)


def weight_of(out: int, inner: int, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(out, inner) * inner**-0.5).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 33])
@pytest.mark.parametrize("sizes", [(1, 1), (37, 129), (130, 515), (256, 64)])
def test_products_of_any_size(dtype: torch.dtype, rows: int, sizes: tuple[int, int]) -> None:
    weight = weight_of(*sizes, dtype)
    x = torch.randn(rows, sizes[1]).to(dtype)
    y = packed_linear(x, pack(weight))
    assert y.dtype == dtype
    assert_near(y, x.double() @ weight.double().t())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_may_lie_anywhere_and_weights_too(dtype: torch.dtype) -> None:
    weight = weight_of(130, 96, dtype)
    packed = pack(weight.t().contiguous().t())
    wide = torch.randn(9, 2 * 96).to(dtype)
    for x in (wide[:, 96:], wide[::2, :96], wide[:8, :96].t().contiguous().t()):
        assert_near(packed_linear(x, packed), x.double() @ weight.double().t())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_rows_give_no_rows(dtype: torch.dtype) -> None:
    y = packed_linear(torch.zeros(0, 96, dtype=dtype), pack(weight_of(130, 96, dtype)))
    assert (tuple(y.shape), y.dtype) == ((0, 130), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packing_keeps_every_bit(dtype: torch.dtype) -> None:
    weight = weight_of(130, 515, dtype)
    packed = pack(weight)
    assert is_packed(packed) and not is_packed(weight)
    assert torch.equal(unpack(packed), weight)


def test_small_weights_and_other_dtypes_and_devices_stay_plain() -> None:
    def is_worth(out: int, inner: int, dtype: torch.dtype, device: str = "cpu") -> bool:
        return is_worth_packing(out, inner, torch.empty(0, dtype=dtype, device=device))

    assert is_worth(1024, 1024, torch.float32)
    assert is_worth(1024, 1024, torch.bfloat16) == torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert not is_worth(64, 64, torch.bfloat16)
    assert not is_worth(256, 256, torch.float32)
    assert not is_worth(1024, 1024, torch.float64)
    assert not is_worth(1024, 1024, torch.float32, "meta")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cap", [None, 3.0])
def test_heads_score_as_plain_ones(dtype: torch.dtype, cap: float | None) -> None:
    weight = weight_of(301, 96, dtype)
    hidden = (10 * torch.randn(5, 96)).to(dtype)
    exact = hidden.double() @ weight.double().t()
    if cap is not None:
        exact = cap * (exact / cap).tanh()
    packed = pack(weight)
    found = logits(hidden, packed, cap)
    assert found.dtype == torch.float32
    assert_near(found, exact, 8e-3 if dtype == torch.bfloat16 else None)


def test_heads_without_rows() -> None:
    packed = pack(weight_of(301, 96, torch.float32))
    assert logits(torch.zeros(0, 96), packed).shape == (0, 301)
