"""Projections as Triton kernels: weights stream through once, sources are computed on the way.

The weights are the left operand of products, so that few rows still fill the tensor cores' tiles.
Where there are few outputs, programs share the columns, and a second kernel adds up their sums in
order. Knows nothing of layers.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import capability, ceil_div, dot_type, launch
from blockdiff_kernels.projection import tiles
from blockdiff_kernels.projection.epilogue import finish, sum_splits
from blockdiff_kernels.projection.operands import SourceArguments, computed, source_arguments
from blockdiff_kernels.projection.prologue import NORMED, source_tile, weigh
from blockdiff_kernels.projection.sources import Plain, Source
from blockdiff_kernels.projection.weight_tile import BY_OUTPUT, NO_SCALE, weight_tile


@triton.jit
def projection_kernel(
    x, gate, norm, w, scale, residual, y, squares, R, N, K, x_row, gate_row, w_row, residual_row,
    y_row, group, groups, eps, offset,
    SOURCE: tl.constexpr, GELU: tl.constexpr, SCALE: tl.constexpr, SPLIT: tl.constexpr,
    DOT: tl.constexpr, D: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Outputs BN of rows BR; D columns at a time, which are a head's or BK."""
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_n = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    m_r, m_n = o_r < R, o_n < N
    steps = tl.cdiv(K, D)
    steps_each = tl.cdiv(steps, tl.num_programs(2))
    first = tl.program_id(2) * steps_each
    acc = tl.zeros([BN, BR], tl.float32)
    b_squares = tl.zeros([BK, BR], tl.float32)
    for i in range(first, min(first + steps_each, steps)):
        o_k = i * D + tl.arange(0, BK)
        m_k = o_k < K
        if D != BK:
            m_k = m_k & (tl.arange(0, BK) < D)
        m_x = m_k[:, None] & m_r[None, :]
        b_x = source_tile(
            x, gate, norm, o_r, o_k, m_x, x_row, gate_row, K, eps, SOURCE, GELU, D, BK
        )
        if SOURCE == NORMED:
            b_squares += b_x.to(tl.float32) * b_x.to(tl.float32)
            b_x = weigh(b_x, norm, o_k, m_k, offset)
        b_w = weight_tile(
            w, scale, o_n, o_k, m_n, m_k, i * D, w_row, group, groups, SCALE, DOT
        )  # fmt: skip
        acc = tl.dot(b_w, b_x.to(DOT), acc, input_precision="ieee")
    if SCALE == BY_OUTPUT:
        acc *= tl.load(scale + o_n, mask=m_n, other=0.0)[:, None]
    finish(
        acc, tl.sum(b_squares, 0), residual, y, squares, o_r, o_n, m_r, m_n, R, N, K,
        residual_row, y_row, eps, SOURCE, SPLIT,
    )  # fmt: skip


class Weights(NamedTuple):
    """A projection's weights and their scales."""

    values: Tensor  # [N, K], or [N, K / 2] of two numbers in a byte
    bits: int  # of a number
    scale: Tensor | None = None  # [N, groups] float32
    group: int = 1  # columns of a scale
    scaling: int = int(NO_SCALE.value)
    width: int = 0  # columns that tiles are parts of, a power of two; 0: any


def projection(
    source: Source, weight: Tensor, residual: Tensor | None = None, y: Tensor | None = None
) -> Tensor:
    """See the package."""
    weights = Weights(weight, weight.itemsize * 8)
    return project(projection_kernel, source, weights, residual, y)


def project(
    kernel: Any, source: Source, weights: Weights, residual: Tensor | None, y: Tensor | None
) -> Tensor:
    """y [R, N] by ``kernel``, which takes the arguments of ``projection_kernel``."""
    own = source_arguments(source)
    if own.rows > own.fused_rows or not _fits(own, weights):
        own = source_arguments(Plain(computed(source)))
    tile = tiles.choose(_shape(own, weights), capability(weights.values))
    arguments = _arguments(own, weights, residual, tile)
    if y is None:
        y = torch.empty(own.rows, arguments["N"], dtype=own.dtype, device=weights.values.device)
    assert y.stride(1) == 1 and y.dtype == own.dtype
    if tile.splits == 1:
        whole = {"y": y, "y_row": y.stride(0), "squares": None, "SPLIT": False}
        _start(kernel, tile, arguments | whole)
    else:
        _start_split(kernel, tile, arguments, own, y)
    return y


def _fits(own: SourceArguments, weights: Weights) -> bool:
    """Whether tiles can be heads: not too many bytes, whole ones, inside a scale's columns."""
    if not own.columns:
        return True
    is_small = own.columns <= tiles.LARGEST_HEAD and own.dtype != torch.float32
    return is_small and own.columns * weights.bits % 8 == 0 and weights.width % own.columns == 0


def _shape(own: SourceArguments, weights: Weights) -> tiles.Shape:
    return tiles.Shape(
        rows=own.rows,
        outputs=weights.values.shape[0],
        inputs=own.inputs,
        width=own.columns or weights.width,
        is_head=own.columns > 0,
        weight_bits=weights.bits,
        row_bits=own.bits,
    )


def _arguments(
    own: SourceArguments, weights: Weights, residual: Tensor | None, tile: tiles.Tile
) -> dict[str, Any]:
    values = weights.values if weights.values.stride(1) == 1 else weights.values.contiguous()
    if residual is not None and residual.stride(1) != 1:
        residual = residual.contiguous()
    return {
        **own.arguments,
        "w": values,
        "scale": weights.scale,
        "residual": residual,
        "R": own.rows,
        "N": values.shape[0],
        "K": own.inputs,
        "w_row": values.stride(0),
        "residual_row": 0 if residual is None else residual.stride(0),
        "group": weights.group,
        "groups": 1 if weights.scale is None else weights.scale.shape[1],
        "SCALE": weights.scaling,
        "DOT": dot_type(own.dtype),
        "D": own.columns or tile.columns,
        "BR": tile.rows,
        "BN": tile.outputs,
        "BK": tile.columns,
    }


def _start(kernel: Any, tile: tiles.Tile, arguments: dict[str, Any]) -> None:
    grid = (
        ceil_div(arguments["R"], tile.rows),
        ceil_div(arguments["N"], tile.outputs),
        tile.splits,
    )
    launch(kernel, grid, arguments, tile.num_warps, tile.num_stages)


def _start_split(
    kernel: Any, tile: tiles.Tile, arguments: dict[str, Any], own: SourceArguments, y: Tensor
) -> None:
    rows, outputs = y.shape
    partial = y.new_empty((tile.splits, rows, outputs), dtype=torch.float32)
    squares = y.new_empty((tile.splits, rows), dtype=torch.float32) if own.is_normed else None
    parts = {"y": partial, "y_row": 0, "squares": squares, "residual": None, "SPLIT": True}
    _start(kernel, tile, arguments | parts)
    sum_splits(partial, y, arguments["residual"], squares, own.inputs, arguments["eps"])
