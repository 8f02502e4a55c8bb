"""Grouped-query attention of padded segments over cached rows in pages and their own rows.

s_ij = q_i . k_j / sqrt(D) over j in [cached rows < context | own rows]
cached row p of a segment lies in its page p // page_length at place p % page_length
own rows: all of the segment (preview), j <= i (causal commit) or, with p the absolute position and
B the block length, p_j // B <= p_i // B (block-causal commit);  o_i = sum_j softmax(s_i)_j v_j
query head h uses key head h // (Hq / Hkv); another factor than 1 / sqrt(D) can be given
window w: cached rows are the last ones before the context; a causal row sees p_j > p_i - w, a
preview row the cached rows p_j > context - w and all of its segment
gate g: o_i sigmoid(g_i);  cap c: c tanh(s_ij / c) instead of s_ij
"""

from torch import Tensor

from blockdiff_kernels.attention import reference
from blockdiff_kernels.attention.sight import Past, Sight
from blockdiff_kernels.implementation import TRITON, choose
from blockdiff_kernels.segments import Segments

__all__ = [
    "Past",
    "Sight",
    "attention",
    "block_attention",
    "visibility",
    "window_visibility",
]


def visibility(
    contexts: Tensor,
    lengths: Tensor,
    rows: int,
    cached: int,
    causal: bool,
    block_lengths: Tensor | None = None,
) -> Tensor:
    """Which keys a row may see, built once per round: [G, 1, T, cached + T] bool.

    contexts [G] int64: cached rows that count; lengths [G] int64: valid own rows;
    rows T; cached: how many cache rows are read at all (at least the largest context).
    block_lengths [G] int64: ``causal`` goes by blocks of the grid anchored at 0, not by rows.
    """
    return reference.visibility(contexts, lengths, rows, cached, causal, block_lengths)


def window_visibility(
    contexts: Tensor, lengths: Tensor, rows: int, cached: int, causal: bool, window: int
) -> Tensor:
    """As ``visibility`` for a sliding window: the cached keys are those of the last ``cached``
    positions before each context, oldest first; places before position 0 are not visible.
    """
    return reference.window_visibility(contexts, lengths, rows, cached, causal, window)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache_key: Tensor,
    cache_value: Tensor,
    pages: Tensor | None,
    visible: Tensor | None,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attend; returns o [G, T, Hq, D] in ``query.dtype``. The caches are only read.

    query [G, T, Hq, D]; key, value [G, T, Hkv, D] of the segment's own rows;
    cache_key, cache_value [Hkv, pages, page_length, D], as they are stored; pages [G, n] int64 of
    each segment in order of position, n * page_length >= the cached rows (None: nothing is cached).
    Cached rows that are not visible must be finite: a masked nan would still poison the sum.
    visible: from ``visibility`` (None: nothing cached, no padding, not causal).
    mask [G, T] bool: False rows are padding, whose contents reach nothing (None: none).
    scale: factor of the products (None: 1 / sqrt(D)).
    """
    past = (cache_key, cache_value, pages)
    return reference.attention(query, key, value, *past, visible, mask, scale)


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
    """Attend over flat rows; rows of segments of out [R, Hq, D] are written in place, no others.

    query, gate [R, Hq, D]; key, value [R, Hkv, D]; only the first axis may be strided. Whatever
    lies in pages that no segment needs, or in rows of no segment, reaches nothing.
    scale: factor of the products (None: 1 / sqrt(D)).
    """
    run = reference.block_attention
    if choose("attention", query.device) is TRITON:
        from blockdiff_kernels.attention import triton

        run = triton.block_attention
    run(query, key, value, past, segments, sight, out, gate=gate, scale=scale, cap=cap)
