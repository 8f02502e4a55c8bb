"""Attention of segments over pages or rings and their own flat rows as Triton kernels.

The query heads that share a key head and consecutive queries make the rows of one tile. Few rows
before many keys are split into parts by keys, which a second kernel merges.

Knows nothing of layers.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.attention.sight import Past, Sight
from blockdiff_kernels.attention.tiles import SMALLEST, attention_tile, count_parts, merge_rows
from blockdiff_kernels.launch import capability, ceil_div, launch, power_of_two
from blockdiff_kernels.segments import Segments

LOG2E = 1.4426950408889634


@triton.jit
def _fold(b_q, b_k, b_v, m_s, b_m, b_l, b_o, scale, CAP: tl.constexpr):
    """One tile of keys into the running maxima, sums and outputs; nothing seen adds zeros."""
    b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale
    if CAP is not None:
        # cap * tanh(s / cap); scores come in units of log 2 otherwise
        b_s = CAP * (1 - 2 / (1 + tl.exp(b_s * (2 / CAP)))) * 1.4426950408889634
    b_s = tl.where(m_s, b_s, -float("inf"))
    b_n = tl.maximum(b_m, tl.max(b_s, 1))
    b_base = tl.where(b_n == -float("inf"), 0.0, b_n)
    b_p = tl.exp2(b_s - b_base[:, None])
    b_shrink = tl.exp2(b_m - b_base)
    b_l = b_l * b_shrink + tl.sum(b_p, 1)
    b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o * b_shrink[:, None], input_precision="ieee")
    return b_n, b_l, b_o


@triton.jit
def block_attention_kernel(
    query, key, value, keys, values, pages, gate, out, part_o, part_m, part_l,
    starts, lengths, contexts, block_lengths, R, places, P, window, scale,
    KV: tl.constexpr, REPEATS: tl.constexpr, PAGE: tl.constexpr, CAUSAL: tl.constexpr,
    CAP: tl.constexpr, Q_WIDTH: tl.constexpr, K_WIDTH: tl.constexpr, V_WIDTH: tl.constexpr,
    GATE_WIDTH: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of queries, segments times key heads times tiles of values, parts of the keys.

    Positions are counted from the sequence's start: cached keys lie before the context, own ones
    from it on. ``out`` is written unless there are parts ([parts, R * Hq] and times D).
    Bases are scalars of 64 bits and offsets within a tile constants, which need no registers.
    """
    i_g, i_v = tl.program_id(1) // (BD // BV) // KV, tl.program_id(1) % (BD // BV) * BV
    i_h = (tl.program_id(1) // (BD // BV) % KV).to(tl.int64)
    i_t, length = tl.program_id(0) * (BM // REPEATS), tl.load(lengths + i_g)
    if i_t >= length:
        return
    context, start = tl.load(contexts + i_g), tl.load(starts + i_g).to(tl.int64)
    o_m, o_n, o_d = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BD)
    o_t, o_v = i_t + o_m // REPEATS, tl.arange(0, BV)
    m_d, m_v = (o_d < D)[None, :], (i_v + o_v < D)[None, :]
    m_m = (o_t < length) & (o_m < BM // REPEATS * REPEATS)
    p_q = query + (start + i_t) * Q_WIDTH + i_h * REPEATS * D
    o_q = (o_m // REPEATS * Q_WIDTH + o_m % REPEATS * D)[:, None] + o_d[None, :]
    b_q = tl.load(p_q + o_q, mask=m_m[:, None] & m_d, other=0.0)
    # keys at positions below ``b_end`` are seen, of all of them those below ``total``
    b_end, total = tl.zeros((BM,), tl.int32) + context + length, context + length
    if CAUSAL:
        b_end = context + o_t + 1
        if block_lengths is not None:
            block = tl.load(block_lengths + i_g)
            b_end = ((context + o_t) // block + 1) * block
        total = tl.minimum(total, tl.max(tl.where(m_m, b_end, 0), 0))
    # and those from ``b_from`` on, of all of them those from ``first`` on
    first, b_from = 0, tl.zeros((BM,), tl.int32)
    if window is not None:
        b_from += context - window + 1
        if CAUSAL:
            b_from += o_t
        first = tl.maximum(first, tl.min(b_from, 0))
    base, own = first // BN * BN, tl.maximum(first // BN * BN, context)
    cached = tl.cdiv(own - base, BN)
    count = cached + tl.cdiv(total - own, BN)
    each = tl.cdiv(count, tl.num_programs(2))
    low = tl.program_id(2) * each
    b_m = tl.full((BM,), -float("inf"), tl.float32)
    b_l, b_o = tl.zeros((BM,), tl.float32), tl.zeros((BM, BV), tl.float32)
    for i in range(low, tl.minimum(low + each, count)):
        # tiles of cached keys, then tiles of own ones
        is_cached = i < cached
        i_p = tl.where(is_cached, base + i * BN, own + (i - cached) * BN)
        o_p = i_p + o_n
        m_p = o_p < tl.where(is_cached, context, total)
        if window is not None:
            m_p = m_p & (o_p >= first)
        o_k, o_w = o_n * tl.where(is_cached, D, K_WIDTH), o_n * tl.where(is_cached, D, V_WIDTH)
        if PAGE % BN == 0:
            # a tile lies within a page
            p_page = pages + i_g * P + (0 if window is not None else i_p // PAGE)
            i_c = tl.load(p_page, mask=is_cached, other=0).to(tl.int64) * PAGE + i_p % PAGE
        else:
            i_c = tl.zeros((), tl.int64)
            b_page = tl.zeros((BN,), tl.int32) if window is not None else o_p // PAGE
            b_page = tl.load(pages + i_g * P + b_page, mask=m_p & is_cached, other=0)
            b_c = (b_page.to(tl.int64) * PAGE + o_p % PAGE) * D
            o_k, o_w = tl.where(is_cached, b_c, o_k), tl.where(is_cached, b_c, o_w)
        i_c, i_r = (i_h * places + i_c) * D, start + i_p - context
        p_k = tl.where(is_cached, keys + i_c, key + i_r * K_WIDTH + i_h * D)
        p_v = tl.where(is_cached, values + i_c, value + i_r * V_WIDTH + i_h * D)
        b_k = tl.load(p_k + o_k[:, None] + o_d[None, :], mask=m_p[:, None] & m_d, other=0.0)
        b_v = tl.load(p_v + i_v + o_w[:, None] + o_v[None, :], mask=m_p[:, None] & m_v, other=0.0)
        m_s = m_p[None, :]
        if CAUSAL:
            m_s = m_s & (o_p[None, :] < b_end[:, None])
        if window is not None:
            m_s = m_s & (o_p[None, :] >= b_from[:, None])
        b_m, b_l, b_o = _fold(b_q, b_k, b_v, m_s, b_m, b_l, b_o, scale, CAP)
    i_o = (start + i_t) * KV * REPEATS + i_h * REPEATS
    o_r = o_m // REPEATS * (KV * REPEATS) + o_m % REPEATS
    o_o, m_o = o_r[:, None] * D + o_v[None, :] + i_v, m_m[:, None] & m_v
    if part_o is not None:
        i_o += tl.program_id(2).to(tl.int64) * R * (KV * REPEATS)
        tl.store(part_m + i_o + o_r, b_m, mask=m_m)
        tl.store(part_l + i_o + o_r, b_l, mask=m_m)
        tl.store(part_o + i_o * D + o_o, b_o, mask=m_o)
    else:
        # rounded before the gate, as the definition does, which also frees registers
        b_y = (b_o * (1 / b_l)[:, None]).to(out.dtype.element_ty)
        if gate is not None:
            p_g = gate + (start + i_t) * GATE_WIDTH + i_h * REPEATS * D + i_v
            o_g = (o_m // REPEATS * GATE_WIDTH + o_m % REPEATS * D)[:, None] + o_v[None, :]
            b_g = tl.load(p_g + o_g, mask=m_o, other=0.0).to(tl.float32)
            # a square of roots takes fewer registers than a division
            b_g = tl.rsqrt(1 + tl.exp2(b_g * -1.4426950408889634))
            b_y = (b_y.to(tl.float32) * b_g * b_g).to(out.dtype.element_ty)
        tl.store(out + i_o * D + o_o, b_y, mask=m_o)


@triton.jit
def merge_parts_kernel(
    part_o, part_m, part_l, gate, out, starts, lengths, R, heads, parts,
    GATE_WIDTH: tl.constexpr, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Weighs the parts' outputs by their maxima and sums, in order."""
    i_g = tl.program_id(1)
    count = tl.load(lengths + i_g) * heads
    i_r = tl.program_id(0) * BR
    if i_r >= count:
        return
    o_n, o_d = i_r + tl.arange(0, BR), tl.arange(0, BD)
    m_r, start = o_n < count, tl.load(starts + i_g).to(tl.int64)
    m = m_r[:, None] & (o_d < D)[None, :]
    o_r = start * heads + o_n
    b_m = tl.full((BR,), -float("inf"), tl.float32)
    b_l, b_o = tl.zeros((BR,), tl.float32), tl.zeros((BR, BD), tl.float32)
    for _ in range(0, parts):
        b_n = tl.load(part_m + o_r, mask=m_r, other=-float("inf"))
        b_next = tl.maximum(b_m, b_n)
        b_base = tl.where(b_next == -float("inf"), 0.0, b_next)
        b_old, b_new = tl.exp2(b_m - b_base), tl.exp2(b_n - b_base)
        b_l = b_l * b_old + tl.load(part_l + o_r, mask=m_r, other=0.0) * b_new
        b_x = tl.load(part_o + o_r[:, None] * D + o_d[None, :], mask=m, other=0.0)
        b_o = b_o * b_old[:, None] + b_x * b_new[:, None]
        b_m = b_next
        o_r += R * heads
    b_o = b_o * (1 / b_l)[:, None]
    o_r = start * heads + o_n
    if gate is not None:
        o_g = (start + o_n // heads) * GATE_WIDTH + (o_n % heads) * D
        b_g = tl.load(gate + o_g[:, None] + o_d[None, :], mask=m, other=0.0)
        b_o *= tl.sigmoid(b_g.to(tl.float32))
    tl.store(out + o_r[:, None] * D + o_d[None, :], b_o.to(out.dtype.element_ty), mask=m)


def block_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: Past,
    segments: Segments,
    sight: Sight,
    out: Tensor,
    *,
    gate: Tensor | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> None:
    """See the package."""
    rows, heads, dim = query.shape
    kv_heads, groups = key.shape[1], segments.starts.shape[0]
    repeats, device = heads // kv_heads, capability(query)
    width = max(SMALLEST, power_of_two(dim))
    tile = attention_tile(width, segments.longest * repeats, query.element_size(), device)
    assert repeats <= tile.rows, "a tile holds all query heads of a key head"
    tiles = ceil_div(segments.longest, tile.rows // repeats)
    parts = count_parts(tiles * groups * kv_heads, _most_keys(past, segments, sight), device)
    merged = _new_parts(query, parts) if parts > 1 else (None, None, None)
    arguments = {
        **_own_arguments(query, key, value, gate, out),
        **_past_arguments(past, segments),
        **dict(zip(("part_o", "part_m", "part_l"), merged, strict=True)),
        "starts": segments.starts,
        "lengths": segments.lengths,
        "contexts": segments.contexts,
        "block_lengths": sight.block_lengths,
        "R": rows,
        "KV": kv_heads,
        "REPEATS": repeats,
        "window": sight.window,
        "scale": (dim**-0.5 if scale is None else scale) * (LOG2E if cap is None else 1.0),
        "CAUSAL": sight.is_causal,
        "CAP": cap,
        "D": dim,
        "BM": tile.rows,
        "BN": tile.keys,
        "BD": width,
        "BV": min(width, tile.values),
    }
    grid = (tiles, groups * kv_heads * ceil_div(width, tile.values), parts)
    launch(block_attention_kernel, grid, arguments, tile.num_warps, tile.num_stages)
    if parts > 1:
        _merge(arguments, segments, heads, parts)


def _own_arguments(
    query: Tensor, key: Tensor, value: Tensor, gate: Tensor | None, out: Tensor
) -> dict[str, Tensor | int | None]:
    dim = query.shape[-1]
    for own in (query, key, value, gate):
        assert own is None or own.stride()[1:] == (dim, 1), "heads lie side by side"
    assert out.is_contiguous() and out.shape == query.shape
    return {
        "query": query,
        "key": key,
        "value": value,
        "gate": gate,
        "out": out,
        "Q_WIDTH": query.stride(0),
        "K_WIDTH": key.stride(0),
        "V_WIDTH": value.stride(0),
        "GATE_WIDTH": 0 if gate is None else gate.stride(0),
    }


def _past_arguments(past: Past, segments: Segments) -> dict[str, Tensor | int]:
    assert past.keys.is_contiguous() and past.values.is_contiguous()
    _, count, page_length, _ = past.keys.shape
    # a ring is the only page of its segment
    pages = segments.slots.unsqueeze(1) if past.pages is None else past.pages
    assert pages.stride(1) == 1 or pages.shape[1] == 1, "pages of a segment lie side by side"
    return {
        "keys": past.keys,
        "values": past.values,
        "pages": pages,
        "places": count * page_length,
        "P": pages.stride(0),
        "PAGE": page_length,
    }


def _most_keys(past: Past, segments: Segments, sight: Sight) -> int:
    """Keys of a segment that the host cannot rule out."""
    if past.pages is None:
        assert sight.window is not None, "rings keep what a window reaches"
        return min(past.keys.shape[2], sight.window) + segments.longest
    return past.pages.shape[1] * past.keys.shape[2] + segments.longest


def _new_parts(query: Tensor, parts: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, heads, dim = query.shape
    largest, total = (query.new_empty(parts, rows, heads, dtype=torch.float32) for _ in range(2))
    return query.new_empty(parts, rows, heads, dim, dtype=torch.float32), largest, total


def _merge(
    attending: dict[str, Any],
    segments: Segments,
    heads: int,
    parts: int,
) -> None:
    shared = ("part_o", "part_m", "part_l", "gate", "out", "starts", "lengths", "GATE_WIDTH", "R")
    rows = merge_rows(attending["BD"])
    arguments = {name: attending[name] for name in (*shared, "D", "BD")}
    arguments |= {"heads": heads, "parts": parts, "BR": rows}
    grid = (ceil_div(segments.longest * heads, rows), segments.starts.shape[0])
    launch(merge_parts_kernel, grid, arguments)
