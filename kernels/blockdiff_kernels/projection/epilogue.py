"""What becomes of a projection's sums: results, or parts of them that a second kernel adds up.

Knows nothing of weights or of how rows are made.
"""

import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import ceil_div, launch
from blockdiff_kernels.projection.prologue import NORMED

SUM_ROWS, SUM_OUTPUTS = 4, 512


@triton.jit
def finish(
    acc, b_squares, residual, y, squares, o_r, o_n, m_r, m_n, R, N, K, residual_row, y_row,
    eps, SOURCE: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Store sums [BN, BR]: of part of the columns in float32, or of all of them as the result."""
    m = m_n[:, None] & m_r[None, :]
    i_s = tl.program_id(2).to(tl.int64)
    if SPLIT:
        if SOURCE == NORMED and tl.program_id(1) == 0:
            tl.store(squares + i_s * R + o_r, b_squares, mask=m_r)
        tl.store(y + (i_s * R + o_r)[None, :] * N + o_n[:, None], acc, mask=m)
    else:
        if SOURCE == NORMED:
            acc *= tl.rsqrt(b_squares / K + eps)[None, :]
        if residual is not None:
            o_residual = o_r[None, :] * residual_row + o_n[:, None]
            acc += tl.load(residual + o_residual, mask=m, other=0.0).to(tl.float32)
        tl.store(y + o_r[None, :] * y_row + o_n[:, None], acc.to(y.dtype.element_ty), mask=m)


@triton.jit
def sum_splits_kernel(
    partial, squares, residual, y, S, R, N, K, residual_row, y_row, eps,
    BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """y [R, N] of sums [S, R, N] over parts of the columns; squares [S, R] if rows are normed."""
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)
    m_r = o_r < R
    m = m_r[:, None] & (o_n < N)[None, :]
    # few rows and outputs: S * R * N stays far below 2^31
    o_part = o_r[:, None] * N + o_n[None, :]
    b_y = tl.zeros([BR, BN], tl.float32)
    b_squares = tl.zeros([BR], tl.float32)
    for i_s in range(S):
        b_y += tl.load(partial + o_part, mask=m, other=0.0)
        o_part += R * N
        if squares is not None:
            b_squares += tl.load(squares + i_s * R + o_r, mask=m_r, other=0.0)
    if squares is not None:
        b_y *= tl.rsqrt(b_squares / K + eps)[:, None]
    if residual is not None:
        o_residual = o_r[:, None] * residual_row + o_n[None, :]
        b_y += tl.load(residual + o_residual, mask=m, other=0.0).to(tl.float32)
    tl.store(y + o_r[:, None] * y_row + o_n[None, :], b_y.to(y.dtype.element_ty), mask=m)


def sum_splits(
    partial: Tensor,
    y: Tensor,
    residual: Tensor | None = None,
    squares: Tensor | None = None,
    inputs: int = 1,
    eps: float = 0.0,
) -> None:
    """Add partial [S, R, N] up in y [R, N], and ``residual``; squares [S, R] of ``inputs``."""
    rows, outputs = y.shape
    arguments = {
        "partial": partial,
        "squares": squares,
        "residual": residual,
        "y": y,
        "S": partial.shape[0],
        "R": rows,
        "N": outputs,
        "K": inputs,
        "residual_row": 0 if residual is None else residual.stride(0),
        "y_row": y.stride(0),
        "eps": eps,
        "BR": SUM_ROWS,
        "BN": SUM_OUTPUTS,
    }
    launch(sum_splits_kernel, (ceil_div(rows, SUM_ROWS), ceil_div(outputs, SUM_OUTPUTS)), arguments)
