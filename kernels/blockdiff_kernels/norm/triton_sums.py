"""Sums with normed rows as Triton kernels: a program has a row, all parts of it at once.

Knows nothing of layers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import launch, power_of_two
from blockdiff_kernels.norm.sums import Factors, Parallel

# numbers of a row that a warp holds
NUMBERS_OF_WARP = 512


@triton.jit
def normed(b_x, weight, o_d, m, eps, D):
    """A row [BD] after its norm, times weights unless there are none."""
    b_x *= tl.rsqrt(tl.sum(b_x * b_x, 0) / D + eps)
    if weight is not None:
        b_x *= tl.load(weight + o_d, mask=m, other=0.0).to(tl.float32)
    return b_x


@triton.jit
def add_normed_kernel(x, added, weight, y, eps, D, BD: tl.constexpr):
    """y = x + norm(added), rows [R, D] contiguous."""
    o_d = tl.arange(0, BD)
    m = o_d < D
    o_x = tl.program_id(0).to(tl.int64) * D + o_d
    b_added = tl.load(added + o_x, mask=m, other=0.0).to(tl.float32)
    b_y = normed(b_added, weight, o_d, m, eps, D)
    b_y += tl.load(x + o_x, mask=m, other=0.0).to(tl.float32)
    tl.store(y + o_x, b_y.to(y.dtype.element_ty), mask=m)


@triton.jit
def norm_of_sum_kernel(x, added, y, eps, D, BD: tl.constexpr):
    """y = norm(x + added), rows [R, D] contiguous."""
    o_d = tl.arange(0, BD)
    m = o_d < D
    o_x = tl.program_id(0).to(tl.int64) * D + o_d
    b_y = tl.load(x + o_x, mask=m, other=0.0).to(tl.float32)
    b_y += tl.load(added + o_x, mask=m, other=0.0).to(tl.float32)
    tl.store(y + o_x, normed(b_y, None, o_d, m, eps, D).to(y.dtype.element_ty), mask=m)


@triton.jit
def add_parallel_kernel(
    x, first, second, after_first, after_second, after_sum, values, kinds, y, eps, D,
    BD: tl.constexpr,
):  # fmt: skip
    """y = (x + norm(norm(first) + norm(second))) * values[kinds], rows [R, D] contiguous."""
    i_r = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BD)
    m = o_d < D
    o_x = i_r * D + o_d
    b_first = tl.load(first + o_x, mask=m, other=0.0).to(tl.float32)
    b_second = tl.load(second + o_x, mask=m, other=0.0).to(tl.float32)
    b_y = normed(b_first, after_first, o_d, m, eps, D)
    b_y += normed(b_second, after_second, o_d, m, eps, D)
    b_y = normed(b_y, after_sum, o_d, m, eps, D)
    b_y += tl.load(x + o_x, mask=m, other=0.0).to(tl.float32)
    b_y *= tl.load(values + tl.load(kinds + i_r).to(tl.int32)).to(tl.float32)
    tl.store(y + o_x, b_y.to(y.dtype.element_ty), mask=m)


def add_normed(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See ``norm.sums``."""
    arguments = {"added": added.contiguous(), "weight": weight, "eps": eps}
    return _by_row(add_normed_kernel, x, arguments)


def norm_of_sum(x: Tensor, added: Tensor, eps: float) -> Tensor:
    """See ``norm.sums``."""
    return _by_row(norm_of_sum_kernel, x, {"added": added.contiguous(), "eps": eps})


def add_parallel(x: Tensor, parallel: Parallel, factors: Factors, eps: float) -> Tensor:
    """See ``norm.sums``."""
    arguments = {
        **parallel._asdict(),
        "first": parallel.first.contiguous(),
        "second": parallel.second.contiguous(),
        **factors._asdict(),
        "eps": eps,
    }
    return _by_row(add_parallel_kernel, x, arguments)


def _by_row(kernel: object, x: Tensor, arguments: dict[str, object]) -> Tensor:
    """Start ``kernel`` for the rows of x [R, D]; returns its ``y``."""
    x = x.contiguous()
    y = torch.empty_like(x)
    width = power_of_two(x.shape[1])
    given = {**arguments, "x": x, "y": y, "D": x.shape[1], "BD": width}
    num_warps = max(1, min(8, width // NUMBERS_OF_WARP))
    launch(kernel, (x.shape[0],), given, num_warps)
    return y
