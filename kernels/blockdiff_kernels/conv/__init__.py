"""Depthwise convolution over time with a committed tail, then silu.

causal_conv:   y_t = silu(sum_{j<k} w[:, j] u_{t-k+1+j});  u left of row 0 is the tail
preview_conv:  y_t = silu(sum_{j<k} w[:, j] u_{t-k+1+j} + sum_{d=1..r} wR[:, d-1] u_{t+d});
               u right of the block is 0; the tail is read, never shifted
mirrored_taps: wR for which preview_conv is silu(causal + mirrored - centre tap), the mirrored
               convolution being the causal one over the reversed block with zeros before it
"""

from torch import Tensor

from blockdiff_kernels.conv import cpu, reference
from blockdiff_kernels.conv.reference import Depthwise, steady_depthwise
from blockdiff_kernels.implementation import CPU, REFERENCE, TRITON, choose

__all__ = [
    "Depthwise",
    "causal_conv",
    "depthwise",
    "mirrored_taps",
    "preview_conv",
    "steady_depthwise",
]


def depthwise(extended: Tensor, weight: Tensor) -> Tensor:
    """silu of the valid depthwise correlation of extended [G, T + k - 1, C] with weight [C, k]."""
    if choose("conv", extended.device, (REFERENCE, CPU, TRITON)) is CPU:
        return cpu.depthwise(extended, weight)
    return reference.depthwise(extended, weight)


def causal_conv(
    u: Tensor,
    tail: Tensor,
    weight: Tensor,
    lengths: Tensor | None = None,
    mix: Depthwise = depthwise,
) -> tuple[Tensor, Tensor]:
    """Causal convolution; returns (y [G, T, C], new_tail [G, k-1, C]) in ``u.dtype``.

    u [G, T, C], tail [G, k-1, C] oldest first, weight [C, k] with the last tap on the current row.
    lengths [G] int64: valid rows per segment (None: all T); padding reaches neither y nor new_tail.
    ``mix``: ``steady_depthwise`` computes every row alike, whatever the sizes.
    """
    return reference.causal_conv(u, tail, weight, lengths, mix)


def preview_conv(
    u: Tensor,
    tail: Tensor,
    weight: Tensor,
    right_weight: Tensor,
    mask: Tensor | None = None,
    mix: Depthwise = depthwise,
) -> Tensor:
    """Convolution of a block that also looks right; returns y [G, T, C] in ``u.dtype``.

    u [G, T, C], tail [G, k-1, C], weight [C, k], right_weight [C, r].
    mask [G, T] bool: False rows are padding and count as zero (None: no padding).
    """
    return reference.preview_conv(u, tail, weight, right_weight, mask, mix)


def mirrored_taps(weight: Tensor) -> Tensor:
    """Right taps [C, k - 1] that mirror the causal taps [C, k], without the one on the row."""
    return reference.mirrored_taps(weight)
