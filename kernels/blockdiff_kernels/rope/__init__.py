"""Rotary position embedding on the first ``rotary_dim`` of D dimensions, half-split.

f_i = theta^(-2i / rotary_dim), i < rotary_dim / 2;  c, s = cos(p f), sin(p f)
y[i] = x[i] c_i - x[i + r/2] s_i;  y[i + r/2] = x[i + r/2] c_i + x[i] s_i;  y[r:] = x[r:]

proportional: r = D and f_i = theta^(-2i / D) for the first pairs, 0 for the others
turn_and_write: q | k = turn(norm(x) w) per head, v = x or norm(x);  store[place] = k, v
"""

from torch import Tensor

from blockdiff_kernels.implementation import TRITON, choose
from blockdiff_kernels.rope import reference
from blockdiff_kernels.rope.heads import HeadNorm, Heads, Scaling, Store

__all__ = [
    "HeadNorm",
    "Heads",
    "Scaling",
    "Store",
    "apply_rope",
    "proportional_angles",
    "rope_angles",
    "turn_and_write",
    "write_rows",
]


def rope_angles(positions: Tensor, rotary_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [..., rotary_dim / 2] float32, of integer positions [...]."""
    if choose("rope", positions.device) is TRITON:
        from blockdiff_kernels.rope import angles

        table = angles.rope_table(rotary_dim, theta, positions.device)
        return angles.angles(positions, table)
    return reference.rope_angles(positions, rotary_dim, theta)


def proportional_angles(
    positions: Tensor, head_dim: int, pairs: int, theta: float
) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [..., head_dim / 2] float32, of which the first ``pairs`` turn."""
    if choose("rope", positions.device) is TRITON:
        from blockdiff_kernels.rope import angles

        table = angles.proportional_table(head_dim, pairs, theta, positions.device)
        return angles.angles(positions, table)
    return reference.proportional_angles(positions, head_dim, pairs, theta)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., heads, D] by angles [..., rotary_dim / 2]; the product is in float32."""
    return reference.apply_rope(x, cos, sin)


def turn_and_write(
    projected: Tensor,
    norm: HeadNorm,
    angles: tuple[Tensor, Tensor],
    heads: Heads,
    store: Store | None = None,
) -> tuple[Tensor, Tensor]:
    """Norm and turn query and key heads; returns them [R, Hq + Hkv, D] and values [R, Hkv, D].

    projected [R, N, D], its heads as ``heads`` says; angles: cosines and sines [R, r / 2] float32.
    Values that stay as they are, are a view. Keys and values of the rows that ``store`` names are
    written to it in place.
    """
    if choose("rope", projected.device) is TRITON:
        from blockdiff_kernels.rope import triton

        return triton.turn_and_write(projected, norm, angles, heads, store)
    return reference.turn_and_write(projected, norm, angles, heads, store)


def write_rows(key: Tensor, value: Tensor, store: Store) -> None:
    """Write rows of key, value [R, Hkv, D] to ``store`` in place."""
    if choose("rope", key.device) is TRITON:
        from blockdiff_kernels.rope import triton

        return triton.write_rows(key, value, store)
    return reference.write_rows(key, value, store)
