"""Looking rows up as a Triton kernel: a program copies a part of one row.

Knows nothing of vocabularies.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import ceil_div, launch

COLUMNS = 1024


@triton.jit
def embedding_kernel(ids, table, y, V, H, row, first, scale, IS_SCALED: tl.constexpr,
                     BH: tl.constexpr):  # fmt: skip
    """table [V, H] with ``row`` numbers between rows, y [R, H] contiguous."""
    i_r = tl.program_id(0).to(tl.int64)
    i_v = tl.load(ids + i_r) - first
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    m = o_h < H
    is_here = (i_v >= 0) & (i_v < V)
    b_y = tl.load(table + i_v * row + o_h, mask=m & is_here, other=0.0)
    if IS_SCALED:
        b_y = (b_y.to(tl.float32) * scale).to(table.dtype.element_ty)
    tl.store(y + i_r * H + o_h, b_y, mask=m)


def embedding(
    ids: Tensor, table: Tensor, scale: float | None = None, first: int | None = None
) -> Tensor:
    """See the package; no row is read where an id is none of the table's."""
    table = table if table.stride(1) == 1 else table.contiguous()
    rows, width = ids.shape[0], table.shape[1]
    y = torch.empty((rows, width), dtype=table.dtype, device=table.device)
    arguments = {
        "ids": ids.contiguous(),
        "table": table,
        "y": y,
        "V": table.shape[0],
        "H": width,
        "row": table.stride(0),
        "first": first or 0,
        "scale": 1.0 if scale is None else float(scale),
        "IS_SCALED": scale is not None,
        "BH": COLUMNS,
    }
    launch(embedding_kernel, (rows, ceil_div(width, COLUMNS)), arguments)
    return y
