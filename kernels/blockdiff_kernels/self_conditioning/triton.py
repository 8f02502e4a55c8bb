"""The expected embedding as Triton kernels: statistics of the logits, then sums over tiles of them.

Probabilities exist in registers only, as the left operand of products with the table. Programs
share the vocabulary; what they add up is joined in order. Knows nothing of layers.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import capability, ceil_div, dot_type, launch, power_of_two
from blockdiff_kernels.projection.epilogue import sum_splits
from blockdiff_kernels.self_conditioning import tiles


@triton.jit
def statistics_kernel(
    logits, largest, total, V, row, parts, SCANNED: tl.constexpr, BV: tl.constexpr
):  # fmt: skip
    """Of each part of a row of logits [R, V]: the largest one m, and the sum of exp(l - m)."""
    i_r, i_p = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b_m = tl.full([BV], float("-inf"), tl.float32)
    b_s = tl.zeros([BV], tl.float32)
    for i in range(0, SCANNED, BV):
        o_v = i_p * SCANNED + i + tl.arange(0, BV)
        b_l = tl.load(logits + i_r * row + o_v, mask=o_v < V, other=float("-inf")).to(tl.float32)
        b_new = tl.maximum(b_m, b_l)
        # a part whose every logit is -inf keeps exp(-inf - 0) at zero, not at nan
        b_shift = tl.where(b_new == float("-inf"), 0.0, b_new)
        b_s = b_s * tl.exp(b_m - b_shift) + tl.exp(b_l - b_shift)
        b_m = b_new
    m = tl.max(b_m, 0)
    shift = tl.where(m == float("-inf"), 0.0, m)
    tl.store(largest + i_r * parts + i_p, m)
    tl.store(total + i_r * parts + i_p, tl.sum(b_s * tl.exp(b_m - shift), 0))


@triton.jit
def expected_kernel(
    logits, table, largest, total, y, R, V, H, first, row, table_row, parts, scale,
    SPLIT: tl.constexpr, DOT: tl.constexpr, BP: tl.constexpr,
    BR: tl.constexpr, BH: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Columns BH of rows BR; logits from ``first`` on belong to the rows of table [V, H]."""
    o_h = tl.program_id(0) * BH + tl.arange(0, BH)
    o_r = tl.program_id(1).to(tl.int64) * BR + tl.arange(0, BR)
    i_s = tl.program_id(2).to(tl.int64)
    m_h, m_r = o_h < H, o_r < R
    o_p = tl.arange(0, BP)
    m_p = m_r[:, None] & (o_p < parts)[None, :]
    o_part = o_r[:, None] * parts + o_p[None, :]
    b_part = tl.load(largest + o_part, mask=m_p, other=float("-inf"))
    b_m = tl.where(m_r, tl.max(b_part, 1), 0.0)
    b_total = tl.load(total + o_part, mask=m_p, other=0.0)
    b_total = tl.sum(b_total * tl.exp(b_part - b_m[:, None]), 1)
    each = tl.cdiv(tl.cdiv(V, BV), tl.num_programs(2))
    start = tl.program_id(2) * each
    acc = tl.zeros([BR, BH], tl.float32)
    for i in range(start, min(start + each, tl.cdiv(V, BV))):
        o_v = i * BV + tl.arange(0, BV)
        m_v = o_v < V
        o_l = o_r[:, None] * row + (first + o_v)[None, :]
        b_l = tl.load(logits + o_l, mask=m_r[:, None] & m_v[None, :], other=float("-inf"))
        b_p = tl.exp(b_l.to(tl.float32) - b_m[:, None]).to(DOT)
        o_t = o_v.to(tl.int64)[:, None] * table_row + o_h[None, :]
        b_t = tl.load(table + o_t, mask=m_v[:, None] & m_h[None, :], other=0.0)
        acc = tl.dot(b_p, b_t, acc, input_precision="ieee")
    acc *= (scale / tl.where(m_r, b_total, 1.0))[:, None]
    m_y = m_r[:, None] & m_h[None, :]
    if SPLIT:
        tl.store(y + (i_s * R + o_r)[:, None] * H + o_h[None, :], acc, mask=m_y)
    else:
        tl.store(y + o_r[:, None] * H + o_h[None, :], acc.to(y.dtype.element_ty), mask=m_y)


def expected_embedding(logits: Tensor, embedding: Tensor, scale: float, first: int) -> Tensor:
    """See the package."""
    table = embedding.contiguous()
    scanned = _scan(logits.contiguous())
    rows, (height, width) = logits.shape[0], table.shape
    tile = tiles.choose(rows, height, width, table.element_size(), capability(table))
    y = torch.empty((rows, width), dtype=table.dtype, device=table.device)
    arguments = {
        **scanned,
        "table": table,
        "R": rows,
        "V": height,
        "H": width,
        "first": first,
        "table_row": table.stride(0),
        "scale": float(scale),
        "DOT": dot_type(table.dtype),
        "BP": power_of_two(scanned["parts"]),
        "BR": tile.rows,
        "BH": tile.width,
        "BV": tile.vocabulary,
    }
    grid = (ceil_div(width, tile.width), ceil_div(rows, tile.rows), tile.splits)
    options = (tile.num_warps, tile.num_stages)
    if tile.splits == 1:
        launch(expected_kernel, grid, arguments | {"y": y, "SPLIT": False}, *options)
        return y
    partial = y.new_empty((tile.splits, rows, width), dtype=torch.float32)
    launch(expected_kernel, grid, arguments | {"y": partial, "SPLIT": True}, *options)
    sum_splits(partial, y)
    return y


def _scan(logits: Tensor) -> dict[str, Any]:
    """The statistics of logits [R, V], with these, as arguments of a kernel."""
    rows, vocabulary = logits.shape
    parts = ceil_div(vocabulary, tiles.SCANNED)
    largest = logits.new_empty((rows, parts), dtype=torch.float32)
    arguments = {
        "logits": logits,
        "row": logits.stride(0),
        "largest": largest,
        "total": torch.empty_like(largest),
        "parts": parts,
    }
    scan = {"V": vocabulary, "SCANNED": tiles.SCANNED, "BV": tiles.SCANNED_AT_ONCE}
    launch(statistics_kernel, (rows, parts), arguments | scan)
    return arguments
