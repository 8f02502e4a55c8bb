"""RMS norms as Triton kernels: a program normalises a few rows, each read and written once.

Knows nothing of layers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import ceil_div, launch, power_of_two
from blockdiff_kernels.norm import tiles
from blockdiff_kernels.norm.kinds import NormKind


@triton.jit
def rms_norm_kernel(
    x, weight, y, R, heads, eps, D: tl.constexpr, KIND: tl.constexpr,
    BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """x, y [R, D] contiguous, weight [heads, D] of row r % heads."""
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, BD)
    m = (o_r < R)[:, None] & (o_d < D)[None, :]
    o_x = o_r[:, None] * D + o_d[None, :]
    b_x = tl.load(x + o_x, mask=m, other=0.0).to(tl.float32)
    b_x *= tl.rsqrt(tl.sum(b_x * b_x, 1) / D + eps)[:, None]
    if KIND != 0:
        o_w = (o_r % heads)[:, None] * D + o_d[None, :]
        b_w = tl.load(weight + o_w, mask=m, other=0.0).to(tl.float32)
        if KIND == 1:
            b_x += b_x * b_w
        elif KIND == 2:
            # rounded before it is scaled, as the definition does
            b_x = b_x.to(y.dtype.element_ty).to(tl.float32) * b_w
        else:
            b_x *= b_w
    tl.store(y + o_x, b_x.to(y.dtype.element_ty), mask=m)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, kind: NormKind) -> Tensor:
    """x [..., D] -> the same shape; weight [D] or [heads, D], for x [..., heads, D]."""
    x = x.contiguous()
    width = x.shape[-1]
    rows = x.numel() // max(width, 1)
    y = torch.empty_like(x)
    tile = tiles.rows_of(width)
    arguments = {
        "x": x,
        "weight": weight,
        "y": y,
        "R": rows,
        "heads": 1 if weight is None else weight.numel() // width,
        "eps": eps,
        "D": width,
        "KIND": int(kind),
        "BR": tile.rows,
        "BD": power_of_two(width),
    }
    launch(rms_norm_kernel, (ceil_div(rows, tile.rows),), arguments, tile.num_warps)
    return y
