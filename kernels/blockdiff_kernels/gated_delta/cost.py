"""What a block of a gated-delta layer must move and compute. Knows nothing of how."""

from typing import NamedTuple

from blockdiff_kernels.cost import Cost


class StateShape(NamedTuple):
    """Of one layer's recurrent state."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int


def cost(segments: int, rows: int, shape: StateShape, writes: bool, state_bytes: float) -> Cost:
    """Of ``segments`` segments of ``rows`` rows each, in bfloat16, after the convolution or, as
    kernels convolve where they read, with it.

    A state is read once by every segment and written by one that ``writes`` (a commit). The
    triangular solve is counted as the blocked one.
    """
    _, heads, keys, values = shape
    channels = 2 * shape.key_heads * keys + 2 * heads * values
    states = heads * keys * values * state_bytes * (2 if writes else 1)
    products = 4 * rows * rows * keys + 4 * rows * rows * values + 4 * rows * keys * values
    solve = 20 * rows**3 / 3
    update = 2 * rows * keys * values if writes else 0
    moved = segments * (states + 2 * rows * channels)
    return Cost(moved, segments * heads * (products + solve + update))
