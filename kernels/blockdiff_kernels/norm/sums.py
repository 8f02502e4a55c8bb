"""Sums with normed rows, as residual streams have them. Plain torch definitions.

add_normed:   y = x + norm(a)
norm_of_sum:  y = norm(x + a)
add_parallel: y = (x + norm(norm(a) + norm(b))) * factor

All norms are ``plain_rms_norm``. Knows nothing of layers.
"""

from typing import NamedTuple

from torch import Tensor

from blockdiff_kernels.implementation import TRITON, choose
from blockdiff_kernels.norm import plain_rms_norm


class Parallel(NamedTuple):
    """Two results for the same rows, and the weights [D] of the norms that follow them."""

    first: Tensor  # [R, D]
    second: Tensor  # [R, D]
    after_first: Tensor
    after_second: Tensor
    after_sum: Tensor


class Factors(NamedTuple):
    """What rows are multiplied by: ``values[kinds[r]]``."""

    values: Tensor  # [2]
    kinds: Tensor  # [R] int64


def add_normed(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x, added [R, D], weight [D] -> [R, D]."""
    if choose("norm", x.device) is TRITON:
        from blockdiff_kernels.norm import triton_sums

        return triton_sums.add_normed(x, added, weight, eps)
    return x + plain_rms_norm(added, weight, eps)


def norm_of_sum(x: Tensor, added: Tensor, eps: float) -> Tensor:
    """x, added [R, D] -> [R, D]."""
    if choose("norm", x.device) is TRITON:
        from blockdiff_kernels.norm import triton_sums

        return triton_sums.norm_of_sum(x, added, eps)
    return plain_rms_norm(x + added, None, eps)


def add_parallel(x: Tensor, parallel: Parallel, factors: Factors, eps: float) -> Tensor:
    """x [R, D] -> [R, D]."""
    if choose("norm", x.device) is TRITON:
        from blockdiff_kernels.norm import triton_sums

        return triton_sums.add_parallel(x, parallel, factors, eps)
    total = plain_rms_norm(parallel.first, parallel.after_first, eps)
    total = total + plain_rms_norm(parallel.second, parallel.after_second, eps)
    total = plain_rms_norm(total, parallel.after_sum, eps)
    return (x + total) * factors.values[factors.kinds].unsqueeze(1)
