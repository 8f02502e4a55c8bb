"""Inverse of unit lower triangular matrices that stays exact where rows repeat.

Blocks of four by two terms of the series, which is all of it, and then pairs of blocks, whose
inverse is [[X, 0], [-Y C X, Y]]. The series of the whole matrix would cancel terms that grow with
its size. Knows nothing of what the matrix is.
"""

import triton
import triton.language as tl

# three products of tf32 halves are as good as float32, and the plain ones have no tensor core
PRECISION = tl.constexpr("tf32x3")


@triton.jit
def unit_lower_inverse(b_a, BT: tl.constexpr):
    """(I + b_a)^-1, [BT, BT] float32 of strictly lower triangular b_a; BT a power of two from 8."""
    o_i = tl.arange(0, BT)[:, None]
    o_j = tl.arange(0, BT)[None, :]
    b_d = tl.where(o_i // 4 == o_j // 4, b_a, 0.0)
    b_eye = tl.where(o_i == o_j, 1.0, 0.0)
    b_square = tl.dot(b_d, b_d, input_precision=PRECISION)
    b_x = tl.dot(b_eye - b_d, b_eye + b_square, input_precision=PRECISION)
    for level in tl.static_range(3, 7):
        if (1 << level) <= BT:
            b_x = _merge(b_x, b_a, o_i, o_j, 1 << level)
    return b_x


@triton.jit
def _merge(b_x, b_a, o_i, o_j, SIZE: tl.constexpr):
    """Inverses of blocks of half of ``SIZE`` -> of blocks of ``SIZE``."""
    HALF: tl.constexpr = SIZE // 2
    is_pair = (o_i // SIZE == o_j // SIZE) & (o_i // HALF != o_j // HALF)
    b_c = tl.where(is_pair, b_a, 0.0)
    b_c = tl.dot(b_c, b_x, input_precision=PRECISION)
    return b_x - tl.dot(b_x, b_c, input_precision=PRECISION)
