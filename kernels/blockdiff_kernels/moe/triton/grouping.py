"""Where each row's experts lie in the order by expert and row: by counting, nothing is compared
with anything of another tile and nothing is atomic, so that the order is always the same.

Knows nothing of how experts were chosen.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import ceil_div, launch, power_of_two
from blockdiff_kernels.moe import tiles as tile_table
from blockdiff_kernels.moe.plan import ExpertGroups, RouterPlan

LISTED = 32  # tiles that one program lists
COUNTED = 8  # lines of the histogram that a program reads at a time


@triton.jit
def totals_of(histogram, i_t, tiles, o_e, m_e, E, BC: tl.constexpr, BE: tl.constexpr):
    """[BE] int32: entries of each expert in all tiles, and in those before tile i_t."""
    o_c = tl.arange(0, BC)
    b_all = tl.zeros([BE], dtype=tl.int32)
    b_before = tl.zeros([BE], dtype=tl.int32)
    for i_c in range(0, tiles, BC):
        m = (i_c + o_c < tiles)[:, None] & m_e[None, :]
        b_h = tl.load(histogram + (i_c + o_c)[:, None] * E + o_e[None, :], mask=m, other=0)
        b_all += tl.sum(b_h, 0)
        b_before += tl.sum(tl.where((i_c + o_c < i_t)[:, None], b_h, 0), 0)
    return b_all, b_before


@triton.jit
def place_kernel(
    ids, histogram, count, rows, inverse, tile_list, offsets, distinct, hits,
    R, E, shared, tiles, first, stop, bound, tile_rows,
    TOP_K: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr, BC: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """Program i < tiles places tile i's rows; later ones list BL tiles each."""
    i_p = tl.program_id(0)
    limit = R
    if count is not None:
        limit = tl.minimum(tl.load(count), R)
    o_e = tl.arange(0, BE)
    b_all, b_before = totals_of(histogram, i_p, tiles, o_e, o_e < E, E, BC, BE)
    is_here = (o_e >= first) & (o_e < stop)
    b_n = tl.where(is_here, b_all, 0)
    b_end = tl.cumsum(b_n, 0)
    routed = tl.sum(b_n, 0)
    if i_p < tiles:
        o_t = i_p * BT + tl.arange(0, BT)
        o_i = o_t * (TOP_K + shared)
        b_taken = tl.zeros([BT, BE], dtype=tl.int32)
        for i_k in range(0, TOP_K):
            b_id = tl.load(ids + o_i + i_k, mask=o_t < limit, other=E)
            b_taken = tl.where(b_id[:, None] == o_e[None, :], 1, b_taken)
        b_place = (b_end - b_n + b_before)[None, :] + tl.cumsum(b_taken, 0) - b_taken
        for i_k in range(0, TOP_K):
            b_id = tl.load(ids + o_i + i_k, mask=o_t < limit, other=E)
            b_at = tl.sum(tl.where(b_id[:, None] == o_e[None, :], b_place, 0), 1)
            is_own = (b_id >= first) & (b_id < stop)
            tl.store(inverse + o_i + i_k, tl.where(is_own, b_at, -1), mask=o_t < R)
            tl.store(rows + b_at, o_t, mask=is_own)
        for i_n in range(0, shared):
            b_at = routed + i_n * limit + o_t
            is_row = o_t < limit
            tl.store(inverse + o_i + TOP_K + i_n, tl.where(is_row, b_at, -1), mask=o_t < R)
            tl.store(rows + b_at, o_t, mask=is_row)
    else:
        b_tiles = tl.where(is_here, (b_n + tile_rows - 1) // tile_rows, 0)
        b_last = tl.cumsum(b_tiles, 0)
        o_l = (i_p - tiles) * BL + tl.arange(0, BL)
        b_e = tl.sum((b_last[None, :] <= o_l[:, None]).to(tl.int32), 1)
        is_it = b_e[:, None] == o_e[None, :]
        b_start = tl.sum(
            tl.where(is_it, (b_end - b_n - (b_last - b_tiles) * tile_rows)[None, :], 0), 1
        )
        b_start += o_l * tile_rows
        b_stop = tl.sum(tl.where(is_it, b_end[None, :], 0), 1)
        b_expert = b_e - first
        # the shared experts' tiles follow, so many of each
        each = tl.maximum((limit + tile_rows - 1) // tile_rows, 1)
        o_s = o_l - tl.sum(b_tiles, 0)
        is_shared = (o_s >= 0) & (o_s // each < shared) & (limit > 0)
        b_expert = tl.where(is_shared, stop - first + o_s // each, b_expert)
        b_own = routed + o_s // each * limit
        b_start = tl.where(is_shared, b_own + o_s % each * tile_rows, b_start)
        b_stop = tl.where(is_shared, b_own + limit, b_stop)
        b_stop = tl.minimum(b_stop, b_start + tile_rows)
        tl.store(tile_list + o_l, b_expert, mask=o_l < bound)
        tl.store(tile_list + bound + o_l, b_start, mask=o_l < bound)
        tl.store(tile_list + 2 * bound + o_l, b_stop, mask=o_l < bound)
    if i_p == 0:
        tl.store(offsets + o_e - first, b_end - b_n, mask=is_here)
        for i_n in range(0, shared + 1):
            tl.store(offsets + stop - first + i_n, routed + i_n * limit)
        used = tl.sum((b_n > 0).to(tl.int32), 0) + tl.where(limit > 0, shared, 0)
        tl.store(distinct, used)
        if hits is not None:
            b_hits = tl.load(hits + o_e, mask=o_e < E, other=0)
            tl.store(hits + o_e, b_hits + b_all, mask=o_e < E)


def group(
    ids: Tensor,
    histogram: Tensor,
    plan: RouterPlan,
    count: Tensor | None,
    hits: Tensor | None,
) -> ExpertGroups:
    """ids [R, chosen] and histogram [tiles, E] of ``choice.choose``; hits [E] int64 is added to."""
    row_count, (first, stop) = ids.shape[0], plan.here
    tile_rows = tile_table.product_rows(row_count, plan.rule.top_k, plan.experts)
    routed = row_count * min(plan.rule.top_k, stop - first)
    bound = min(routed, stop - first + routed // tile_rows)
    bound = max(bound + plan.shared * ceil_div(row_count, tile_rows), 1)
    tile_list = ids.new_empty(3, bound)
    groups = ExpertGroups(
        rows=ids.new_empty(ids.numel()),
        inverse=torch.empty_like(ids),
        tiles=tile_list,
        offsets=ids.new_empty(plan.stacked + 1),
        distinct=ids.new_empty(1),
        tile_rows=tile_rows,
    )
    row_tiles = histogram.shape[0]
    tile = tile_table.choice_tile(row_count, plan.experts)
    arguments = {
        "ids": ids,
        "histogram": histogram,
        "count": count,
        "rows": groups.rows,
        "inverse": groups.inverse,
        "tile_list": tile_list,
        "offsets": groups.offsets,
        "distinct": groups.distinct,
        "hits": hits,
        "R": row_count,
        "E": plan.experts,
        "shared": plan.shared,
        "tiles": row_tiles,
        "first": first,
        "stop": stop,
        "bound": bound,
        "tile_rows": tile_rows,
        "TOP_K": plan.rule.top_k,
        "BT": tile.rows,
        "BE": power_of_two(plan.experts),
        "BC": COUNTED,
        "BL": LISTED,
    }
    launch(place_kernel, (row_tiles + ceil_div(bound, LISTED),), arguments, num_warps=4)
    return groups
