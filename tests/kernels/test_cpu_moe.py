"""Packed experts against the float64 definition. Run: pytest tests/kernels/test_cpu_moe.py"""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.moe import packed_experts, reference
from blockdiff_kernels.packed import pack

from .errors import assert_near

DTYPES = (torch.float32, torch.bfloat16)
HIDDEN, INNER, EXPERTS, CHOSEN = 97, 33, 7, 3


class Stack(NamedTuple):
    gate_up: Tensor
    down: Tensor
    packed: tuple[list[Tensor], list[Tensor]]


def stack_of(dtype: torch.dtype) -> Stack:
    torch.manual_seed(0)
    gate_up = (torch.randn(EXPERTS, 2 * INNER, HIDDEN) * HIDDEN**-0.5).to(dtype)
    down = (torch.randn(EXPERTS, INNER, HIDDEN) * INNER**-0.5).to(dtype)
    packed = [pack(own) for own in gate_up], [pack(own.t()) for own in down]
    return Stack(gate_up, down, packed)


def ids_of(kind: str, rows: int) -> Tensor:
    """Expert ids [R, k]; one column of "elsewhere" names the expert that is not here."""
    ids = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(rows)])
    if kind == "one takes all":
        ids = torch.full((rows, 1), 4)
    elif kind == "empty experts":
        ids = torch.tensor([5, 0, 2]).expand(rows, -1)
    elif kind == "elsewhere":
        ids[:, 1] = EXPERTS
    elif kind == "all elsewhere":
        ids = torch.full((rows, CHOSEN), EXPERTS)
    return ids


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize(
    "kind", ["any", "one takes all", "empty experts", "elsewhere", "all elsewhere"]
)
def test_experts_as_defined(dtype: torch.dtype, rows: int, kind: str) -> None:
    stack = stack_of(dtype)
    x, ids = torch.randn(rows, HIDDEN).to(dtype), ids_of(kind, rows)
    weights = torch.rand(ids.shape)
    y = packed_experts(x, weights, ids, *stack.packed)
    assert y.dtype == dtype
    exact = reference.grouped_experts(
        x.double(), weights.double(), ids, stack.gate_up.double(), stack.down.double()
    )
    assert_near(y, exact)
    assert torch.equal(y, packed_experts(x, weights, ids, *stack.packed))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_activation_and_rows_that_are_not_contiguous(dtype: torch.dtype) -> None:
    stack = stack_of(dtype)
    x = torch.randn(HIDDEN, 6).to(dtype).t()
    ids, weights = ids_of("any", 12)[::2], torch.rand(6, 2 * CHOSEN)[:, ::2]
    y = packed_experts(x, weights, ids, *stack.packed, "gelu_tanh")
    wide = (stack.gate_up.double(), stack.down.double())
    exact = reference.grouped_experts(x.double(), weights.double(), ids, *wide, "gelu_tanh")
    assert_near(y, exact)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_rows_give_no_rows(dtype: torch.dtype) -> None:
    no_ids = torch.zeros(0, CHOSEN, dtype=torch.int64)
    x = torch.zeros(0, HIDDEN, dtype=dtype)
    y = packed_experts(x, torch.zeros(0, CHOSEN), no_ids, *stack_of(dtype).packed)
    assert (tuple(y.shape), y.dtype) == ((0, HIDDEN), dtype)


def test_a_row_of_nans_stays_alone() -> None:
    stack, ids = stack_of(torch.float32), ids_of("elsewhere", 6)
    x = torch.randn(6, HIDDEN)
    x[5] = float("nan")
    y = packed_experts(x, torch.rand(ids.shape), ids, *stack.packed)
    assert bool(y[:5].isfinite().all()) and bool(y[5].isnan().all())
