"""What a projection's kernel reads of its source: a tile of rows, computed where it is loaded.

Tiles have the columns first, [BK, BR], as the weights are the left operand. Knows nothing of
weights.
"""

import triton
import triton.language as tl

from blockdiff_kernels.pointwise.activations import gelu_tanh, silu

PLAIN: tl.constexpr = tl.constexpr(0)
NORMED: tl.constexpr = tl.constexpr(1)
GATED_NORMED: tl.constexpr = tl.constexpr(2)
GATED_PAIR: tl.constexpr = tl.constexpr(3)


@triton.jit
def source_tile(
    x, gate, norm, o_r, o_k, m, x_row, gate_row, K, eps,
    SOURCE: tl.constexpr, GELU: tl.constexpr, D: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Columns ``o_k`` [BK] of rows ``o_r`` [BR]; of rows to be normed, as they are."""
    o_x = o_r[None, :] * x_row + o_k[:, None]
    b_x = tl.load(x + o_x, mask=m, other=0.0)
    if SOURCE == GATED_NORMED:
        # a tile is a head
        b_x = b_x.to(tl.float32)
        b_scale = tl.rsqrt(tl.sum(b_x * b_x, 0) / D + eps)
        o_d = tl.arange(0, BK)
        b_norm = tl.load(norm + o_d, mask=o_d < D, other=0.0).to(tl.float32)
        o_gate = o_r[None, :] * gate_row + o_k[:, None]
        b_gate = tl.load(gate + o_gate, mask=m, other=0.0).to(tl.float32)
        b_x = b_x * b_scale[None, :] * b_norm[:, None] * silu(b_gate)
    elif SOURCE == GATED_PAIR:
        b_up = tl.load(x + o_x + K, mask=m, other=0.0).to(tl.float32)
        b_x = b_x.to(tl.float32)
        b_x = b_up * (gelu_tanh(b_x) if GELU else silu(b_x))
    return b_x


@triton.jit
def weigh(b_x, norm, o_k, m_k, offset):
    """Rows [BK, BR] times the norm's weights of columns ``o_k``, which lack ``offset``."""
    b_norm = tl.load(norm + o_k, mask=m_k, other=0.0).to(tl.float32) + offset
    return b_x.to(tl.float32) * b_norm[:, None]
