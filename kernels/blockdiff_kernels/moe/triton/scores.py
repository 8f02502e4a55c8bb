"""The router's product with the RMS norm in front of it, and the normed rows for the experts.

Knows nothing of what is chosen by the scores.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import ceil_div, dot_type, launch
from blockdiff_kernels.moe import tiles
from blockdiff_kernels.moe.plan import RouterPlan
from blockdiff_kernels.projection.sources import Normed, Plain

UNNORMED: tl.constexpr = tl.constexpr(-1)
ZERO_CENTRED: tl.constexpr = tl.constexpr(1)
SCALED: tl.constexpr = tl.constexpr(2)
PLAIN: tl.constexpr = tl.constexpr(3)


@triton.jit
def scale_columns(b_x, weight, o_k, m_k, KIND: tl.constexpr):
    """b_x [BT, BK] float32 times what the norm multiplies column o_k by."""
    if KIND > 0:
        b_w = tl.load(weight + o_k, mask=m_k, other=0.0).to(tl.float32)[None, :]
        if KIND == ZERO_CENTRED:
            b_x += b_x * b_w
        else:
            b_x *= b_w
    return b_x


@triton.jit
def score_kernel(
    x, router, router_norm, rows_norm, logits, rows, count, R, H, N, S, eps, rows_eps, scale,
    ROUTER_KIND: tl.constexpr, ROWS_KIND: tl.constexpr, DOT: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """logits [R, N] = scale * router [N, H] norm(x [R, H]); rows [R, H] = their own norm of x.

    The norm's factor of a row comes after the product. Each program writes S columns of ``rows``.
    """
    i_t, i_o = tl.program_id(0), tl.program_id(1)
    limit = R
    if count is not None:
        limit = tl.minimum(tl.load(count), R)
    if i_t * BT >= limit:
        return
    o_t = i_t * BT + tl.arange(0, BT)
    m_t = o_t < limit
    o_o = i_o * BN + tl.arange(0, BN)
    o_k = tl.arange(0, BK)
    p_x = x + o_t.to(tl.int64)[:, None] * H + o_k[None, :]
    p_w = router + o_o[:, None] * H + o_k[None, :]
    b_score = tl.zeros([BN, BT], dtype=tl.float32)
    b_square = tl.zeros([BT, BK], dtype=tl.float32)
    for i_k in range(0, H, BK):
        m_k = o_k < H - i_k
        b_x = tl.load(p_x + i_k, mask=m_t[:, None] & m_k[None, :], other=0.0).to(tl.float32)
        b_w = tl.load(p_w + i_k, mask=(o_o < N)[:, None] & m_k[None, :], other=0.0)
        b_square += b_x * b_x
        b_x = scale_columns(b_x, router_norm, i_k + o_k, m_k, ROUTER_KIND)
        b_score = tl.dot(b_w, tl.trans(b_x.to(DOT)), b_score, input_precision="ieee")
    b_mean = tl.sum(b_square, 1) / H
    if ROUTER_KIND != UNNORMED:
        b_score *= tl.rsqrt(b_mean + eps)[None, :]
    p_y = logits + o_t.to(tl.int64)[None, :] * N + o_o[:, None]
    tl.store(p_y, b_score * scale, mask=m_t[None, :] & (o_o < N)[:, None])
    if ROWS_KIND != UNNORMED:
        b_factor = tl.rsqrt(b_mean + rows_eps)[:, None]
        last = tl.minimum(i_o * S + S, H)
        p_r = rows + o_t.to(tl.int64)[:, None] * H + o_k[None, :]
        for i_k in range(i_o * S, last, BK):
            m_k = o_k < last - i_k
            m = m_t[:, None] & m_k[None, :]
            b_x = tl.load(p_x + i_k, mask=m, other=0.0).to(tl.float32) * b_factor
            if ROWS_KIND == SCALED:
                # rounded before it is scaled, as the definition does
                b_x = b_x.to(rows.dtype.element_ty).to(tl.float32)
            b_x = scale_columns(b_x, rows_norm, i_k + o_k, m_k, ROWS_KIND)
            tl.store(p_r + i_k, b_x.to(rows.dtype.element_ty), mask=m)


def score(source: Plain | Normed, plan: RouterPlan, count: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits [R, E (+ 1)] float32 and the source's rows [R, H]; of padding, neither."""
    x = source.x.contiguous()
    row_count, hidden = x.shape
    outputs = plan.weight.shape[0]
    logits = x.new_empty(row_count, outputs, dtype=torch.float32)
    own = source if isinstance(source, Normed) else None
    router = own if plan.norm is None else plan.norm
    rows = x if own is None else torch.empty_like(x)
    tile = tiles.score_tile(row_count, plan.weight.element_size())
    slices = ceil_div(outputs, tile.outputs)
    arguments = {
        "x": x,
        "router": plan.weight,
        "router_norm": None if router is None else router.weight,
        "rows_norm": None if own is None else own.weight,
        "logits": logits,
        "rows": rows,
        "count": count,
        "R": row_count,
        "H": hidden,
        "N": outputs,
        "S": ceil_div(ceil_div(hidden, slices), tile.depth) * tile.depth,
        "eps": 0.0 if router is None else router.eps,
        "rows_eps": 0.0 if own is None else own.eps,
        "scale": plan.logit_scale,
        "ROUTER_KIND": UNNORMED.value if router is None else int(router.kind),
        "ROWS_KIND": UNNORMED.value if own is None else int(own.kind),
        "DOT": dot_type(plan.weight.dtype),
        "BT": tile.rows,
        "BN": tile.outputs,
        "BK": tile.depth,
    }
    grid = (ceil_div(row_count, tile.rows), slices)
    launch(score_kernel, grid, arguments, tile.num_warps, tile.num_stages)
    return logits, rows
