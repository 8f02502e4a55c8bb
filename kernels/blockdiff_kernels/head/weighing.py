"""Sums of a table's rows by weight, a part of the table at a time, as a Triton kernel.

Programs share a part's rows where there are few sums; what each adds up stays its own until the
last part. Knows nothing of what the weights are.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import capability, ceil_div, launch
from blockdiff_kernels.projection.epilogue import sum_splits
from blockdiff_kernels.self_conditioning.tiles import Tile, choose

# wider sums spill, as a part begins with what the last one has left
MOST_WIDTH = 128


@triton.jit
def weigh_kernel(
    shares, table, live, sums, R, V, H, first, part,
    BR: tl.constexpr, BH: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """sums [S, R, H] += shares [R, part] times rows ``first`` on of table [V, H]; set by part 0."""
    i_s = tl.program_id(2)
    if live is not None:  # noqa: SIM102
        if tl.program_id(1) * BR >= tl.load(live):
            return
    o_h = tl.program_id(0) * BH + tl.arange(0, BH)
    o_r = tl.program_id(1).to(tl.int64) * BR + tl.arange(0, BR)
    m_h, m_r = o_h < H, o_r < R
    count = min(part, V - first)
    each = tl.cdiv(tl.cdiv(count, BV), tl.num_programs(2))
    start = i_s * each
    m = m_r[:, None] & m_h[None, :]
    p_sums = sums + (i_s.to(tl.int64) * R + o_r)[:, None] * H + o_h[None, :]
    acc = tl.load(p_sums, mask=m & (first > 0), other=0.0)
    for i in range(start, min(start + each, tl.cdiv(count, BV))):
        o_v = i * BV + tl.arange(0, BV)
        m_v = o_v < count
        o_share = o_r[:, None] * part + o_v[None, :]
        b_share = tl.load(shares + o_share, mask=m_r[:, None] & m_v[None, :], other=0.0)
        o_row = (first + o_v).to(tl.int64)[:, None] * H + o_h[None, :]
        b_row = tl.load(table + o_row, mask=m_v[:, None] & m_h[None, :], other=0.0)
        acc = tl.dot(b_share, b_row, acc, input_precision="ieee")
    tl.store(p_sums, acc, mask=m)


class Sums(NamedTuple):
    """Sums of rows of ``table`` [V, H] that are not finished: parts [S, R, H] float32."""

    table: Tensor
    parts: Tensor
    tile: Tile

    @classmethod
    def begin(cls, rows: int, table: Tensor) -> "Sums":
        """For ``rows`` sums; nothing is added yet, and the first part must be that of row 0."""
        table = table.contiguous()
        height, width = table.shape
        tile = choose(rows, height, width, table.element_size(), capability(table))
        tile = tile._replace(width=min(tile.width, MOST_WIDTH))
        shape = (tile.splits, rows, width)
        return cls(table, table.new_empty(shape, dtype=torch.float32), tile)

    def add(self, shares: Tensor, first: int, live: Tensor | None) -> None:
        """Add rows ``first`` on of the table, weighed by shares [R, part] of its dtype."""
        tile, (_, rows, width) = self.tile, self.parts.shape
        arguments = {
            "shares": shares,
            "table": self.table,
            "live": live,
            "sums": self.parts,
            "R": rows,
            "V": self.table.shape[0],
            "H": width,
            "first": first,
            "part": shares.shape[1],
            "BR": tile.rows,
            "BH": tile.width,
            "BV": tile.vocabulary,
        }
        grid = (ceil_div(width, tile.width), ceil_div(rows, tile.rows), tile.splits)
        launch(weigh_kernel, grid, arguments, tile.num_warps, tile.num_stages)

    def finish(self) -> Tensor:
        """The sums [R, H] in the table's dtype."""
        y = self.table.new_empty(self.parts.shape[1:])
        sum_splits(self.parts, y)
        return y
