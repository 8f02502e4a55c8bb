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
    x, weight, y, R, H, x_row, heads, eps, D: tl.constexpr, KIND: tl.constexpr,
    BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """x [R / H, H, D] with ``x_row`` numbers between rows, y [R, D], weight [heads, D] in turn."""
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, BD)
    m = (o_r < R)[:, None] & (o_d < D)[None, :]
    o_x = (o_r // H * x_row + o_r % H * D)[:, None] + o_d[None, :]
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
    tl.store(y + o_r[:, None] * D + o_d[None, :], b_x.to(y.dtype.element_ty), mask=m)


@triton.jit
def gated_rms_norm_kernel(
    x, gate, weight, y, R, H, x_row, gate_row, eps, D: tl.constexpr,
    BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """x, gate [R / H, H, D] with strides between rows, weight [D], y [R, D] contiguous."""
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, BD)
    m = (o_r < R)[:, None] & (o_d < D)[None, :]
    o_head = ((o_r % H) * D)[:, None] + o_d[None, :]
    b_x = tl.load(x + (o_r // H * x_row)[:, None] + o_head, mask=m, other=0.0).to(tl.float32)
    b_x *= tl.rsqrt(tl.sum(b_x * b_x, 1) / D + eps)[:, None]
    b_gate = tl.load(gate + (o_r // H * gate_row)[:, None] + o_head, mask=m, other=0.0)
    b_gate = b_gate.to(tl.float32)
    b_x *= tl.load(weight + o_d, mask=o_d < D, other=0.0).to(tl.float32)[None, :]
    b_x *= b_gate / (1.0 + tl.exp(-b_gate))
    tl.store(y + o_r[:, None] * D + o_d[None, :], b_x.to(y.dtype.element_ty), mask=m)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, kind: NormKind) -> Tensor:
    """x [..., D] -> the same shape; weight [D] or [heads, D], for x [..., heads, D]."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x = _by_heads(x)
    _, heads, width = x.shape
    rows = x.shape[0] * heads
    tile = tiles.rows_of(width)
    arguments = {
        "x": x,
        "weight": weight,
        "y": y,
        "R": rows,
        "H": heads,
        "x_row": x.stride(0),
        "heads": 1 if weight is None else weight.numel() // width,
        "eps": eps,
        "D": width,
        "KIND": int(kind),
        "BR": tile.rows,
        "BD": power_of_two(width),
    }
    launch(rms_norm_kernel, (ceil_div(rows, tile.rows),), arguments, tile.num_warps)
    return y


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x, gate [..., D] -> the same shape in the dtype of ``gate``; weight [D]."""
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    x, gate = _by_heads(x), _by_heads(gate)
    _, heads, width = x.shape
    rows = x.shape[0] * heads
    tile = tiles.rows_of(width)
    arguments = {
        "x": x,
        "gate": gate,
        "weight": weight.contiguous(),
        "y": y,
        "R": rows,
        "H": heads,
        "x_row": x.stride(0),
        "gate_row": gate.stride(0),
        "eps": eps,
        "D": width,
        "BR": tile.rows,
        "BD": power_of_two(width),
    }
    launch(gated_rms_norm_kernel, (ceil_div(rows, tile.rows),), arguments, tile.num_warps)
    return y


def _by_heads(x: Tensor) -> Tensor:
    """[..., heads, D] or [..., D] -> [R, heads, D] with the heads of a row side by side."""
    if x.dim() != 3:
        x = x.contiguous().view(-1, x.shape[-2] if x.dim() > 2 else 1, x.shape[-1])
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
