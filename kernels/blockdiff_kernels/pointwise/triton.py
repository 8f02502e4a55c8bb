"""activation(gate) * up of rows [gate | up] as a Triton kernel.

For many rows: few are computed where a projection reads them. Knows nothing of layers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import ceil_div, launch
from blockdiff_kernels.pointwise.activations import gelu_tanh, silu

COLUMNS = 1024


@triton.jit
def gated_pair_kernel(gate_up, y, K, row, GELU: tl.constexpr, BK: tl.constexpr):
    """gate_up [R, 2 K] with ``row`` numbers between rows, y [R, K] contiguous."""
    i_r = tl.program_id(0).to(tl.int64)
    o_k = tl.program_id(1) * BK + tl.arange(0, BK)
    m = o_k < K
    b_gate = tl.load(gate_up + i_r * row + o_k, mask=m, other=0.0).to(tl.float32)
    b_up = tl.load(gate_up + i_r * row + K + o_k, mask=m, other=0.0).to(tl.float32)
    b_y = b_up * (gelu_tanh(b_gate) if GELU else silu(b_gate))
    tl.store(y + i_r * K + o_k, b_y.to(y.dtype.element_ty), mask=m)


def gated_pair(gate_up: Tensor, is_gelu: bool) -> Tensor:
    """gate_up [R, 2 I] -> [R, I]."""
    gate_up = gate_up if gate_up.stride(1) == 1 else gate_up.contiguous()
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    y = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    arguments = {
        "gate_up": gate_up,
        "y": y,
        "K": width,
        "row": gate_up.stride(0),
        "GELU": is_gelu,
        "BK": COLUMNS,
    }
    launch(gated_pair_kernel, (rows, ceil_div(width, COLUMNS)), arguments)
    return y
