"""Plain torch definition of attention over pages and own rows. Knows nothing of layers."""

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff_kernels.attention.sight import Past, Sight
from blockdiff_kernels.segments import Segments


def visibility(
    contexts: Tensor,
    lengths: Tensor,
    rows: int,
    cached: int,
    causal: bool,
    block_lengths: Tensor | None = None,
) -> Tensor:
    """[G, 1, T, cached + T] bool: True where a row may look at a key."""
    device = contexts.device
    past = torch.arange(cached, device=device) < contexts.unsqueeze(1)
    steps = torch.arange(rows, device=device)
    own = (steps < lengths.unsqueeze(1)).unsqueeze(1).expand(-1, rows, -1)
    if causal and block_lengths is not None:
        # [G, T] block of every row
        blocks = (contexts.unsqueeze(1) + steps) // block_lengths.unsqueeze(1)
        own = own & (blocks.unsqueeze(1) <= blocks.unsqueeze(2))
    elif causal:
        own = own & (steps <= steps.unsqueeze(1))
    past = past.unsqueeze(1).expand(-1, rows, -1)
    return torch.cat((past, own), dim=-1).unsqueeze(1)


def window_visibility(
    contexts: Tensor, lengths: Tensor, rows: int, cached: int, causal: bool, window: int
) -> Tensor:
    """See the package docstring."""
    device = contexts.device
    steps = torch.arange(rows, device=device)
    # places counted from the context: cached keys are negative
    keys = torch.arange(-cached, rows, device=device)
    exists = (keys < lengths.unsqueeze(1)) & (keys >= -contexts.unsqueeze(1))
    if causal:
        near = (keys <= steps.unsqueeze(1)) & (keys > steps.unsqueeze(1) - window)
    else:
        near = (keys > -window).expand(rows, -1)
    return (exists.unsqueeze(1) & near).unsqueeze(1)


def gather(store: Tensor, pages: Tensor) -> Tensor:
    """Rows [G, Hkv, n * page_length, D] of pages [G, n] of a store [Hkv, pages, page_length, D]."""
    heads, _, page_length, dim = store.shape
    found = store.index_select(1, pages.flatten())
    return found.view(heads, len(pages), pages.shape[1] * page_length, dim).transpose(0, 1)


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
    """See the package docstring."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if mask is not None:
        padding = ~mask[:, None, :, None]
        k, v = k.masked_fill(padding, 0), v.masked_fill(padding, 0)
    cached = 0 if visible is None else visible.shape[-1] - key.shape[1]
    if cached:
        assert pages is not None, "cached rows lie in pages"
        k = torch.cat((gather(cache_key, pages)[:, :, :cached].to(k.dtype), k), dim=2)
        v = torch.cat((gather(cache_value, pages)[:, :, :cached].to(v.dtype), v), dim=2)
    mixed = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return mixed.transpose(1, 2)


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
    """See the package docstring; one segment after the other."""
    lists = (own.tolist() for own in (segments.starts, segments.lengths, segments.contexts))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    for number, (start, length, context) in enumerate(zip(*lists, strict=True)):
        if not length:
            continue
        rows = slice(start, start + length)
        places = torch.arange(context + length, device=query.device)
        cached = _positions_kept(past, segments, number, places[:context])
        keys, values = (
            torch.cat((store.flatten(1, 2)[:, cached].transpose(0, 1), own[rows]))
            for store, own in ((past.keys, key), (past.values, value))
        )
        repeats = query.shape[1] // key.shape[1]
        keys, values = (x.repeat_interleave(repeats, 1) for x in (keys, values))
        scores = torch.einsum("thd,jhd->htj", query[rows], keys) * factor
        if cap is not None:
            scores = cap * (scores / cap).tanh()
        seen = _seen(sight, number, places, context)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        mixed = torch.einsum("htj,jhd->thd", weights, values)
        out[rows] = mixed if gate is None else mixed * gate[rows].sigmoid()


def _positions_kept(past: Past, segments: Segments, number: int, positions: Tensor) -> Tensor:
    """Where positions before a context lie in pages laid end to end; a ring repeats."""
    page_length = past.keys.shape[2]
    if past.pages is None:
        return segments.slots[number] * page_length + positions % page_length
    return past.pages[number, positions // page_length] * page_length + positions % page_length


def _seen(sight: Sight, number: int, places: Tensor, context: int) -> Tensor:
    """[T, context + T] bool of one segment."""
    rows = places[context:].unsqueeze(1)
    if not sight.is_causal:
        start = 0 if sight.window is None else context - sight.window + 1
        return (places >= start).expand(len(rows), -1)
    if sight.block_lengths is not None:
        block = sight.block_lengths[number]
        return places // block <= rows // block
    seen = places <= rows
    return seen if sight.window is None else seen & (places > rows - sight.window)
