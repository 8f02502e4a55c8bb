"""Plain torch definition of attention over pages and own rows. Knows nothing of layers."""

import torch
from torch import Tensor
from torch.nn import functional


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
