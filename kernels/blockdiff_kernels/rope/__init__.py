"""Rotary position embedding on the first ``rotary_dim`` of D dimensions, half-split.

f_i = theta^(-2i / rotary_dim), i < rotary_dim / 2;  c, s = cos(p f), sin(p f)
y[i] = x[i] c_i - x[i + r/2] s_i;  y[i + r/2] = x[i + r/2] c_i + x[i] s_i;  y[r:] = x[r:]

proportional: r = D and f_i = theta^(-2i / D) for the first pairs, 0 for the others
"""

from torch import Tensor

from blockdiff_kernels.rope import reference


def rope_angles(positions: Tensor, rotary_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [..., rotary_dim / 2] float32, of integer positions [...]."""
    return reference.rope_angles(positions, rotary_dim, theta)


def proportional_angles(
    positions: Tensor, head_dim: int, pairs: int, theta: float
) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [..., head_dim / 2] float32, of which the first ``pairs`` turn."""
    return reference.proportional_angles(positions, head_dim, pairs, theta)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., heads, D] by angles [..., rotary_dim / 2]; the product is in float32."""
    return reference.apply_rope(x, cos, sin)
