"""Attention over pages against loops in float64. Run: pytest tests/kernels"""

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.attention import attention, visibility


def loop(q: Tensor, keys: Tensor, values: Tensor, context: int, causal: bool) -> Tensor:
    """Definition for one segment: q [T, Hq, D], keys, values [context + T, Hkv, D]."""
    q, keys, values = q.double(), keys.double(), values.double()
    repeats = q.shape[1] // keys.shape[1]
    outputs = torch.zeros_like(q)
    for i in range(q.shape[0]):
        seen = context + i + 1 if causal else keys.shape[0]
        for h in range(q.shape[1]):
            scores = keys[:seen, h // repeats] @ q[i, h] * q.shape[-1] ** -0.5
            outputs[i, h] = scores.softmax(0) @ values[:seen, h // repeats]
    return outputs


@pytest.mark.parametrize("causal", [True, False], ids=["commit", "preview"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_matches_the_loop_with_nan_in_everything_unused(causal: bool, kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(kv_heads)
    rows, lengths, contexts, pages = 7, [7, 1, 4], [0, 9, 3], [[2, 2, 2], [6, 0, 3], [5, 2, 5]]
    q = torch.randn(3, rows, 4, 6, generator=generator)
    k, v = torch.randn(2, 3, rows, kv_heads, 6, generator=generator)
    cache_k, cache_v = torch.randn(2, kv_heads, 8, 4, 6, generator=generator)
    # pages nobody uses and rows past the longest context hold garbage
    for cache in (cache_k, cache_v):
        cache[:, [1, 4, 7]] = float("nan")
        cache[:, 3, 1:] = float("nan")
    mask = torch.arange(rows) < torch.tensor(lengths).unsqueeze(1)
    k[~mask] = v[~mask] = float("nan")
    visible = visibility(torch.tensor(contexts), torch.tensor(lengths), rows, 9, causal)
    got = attention(q, k, v, cache_k, cache_v, torch.tensor(pages), visible, mask)
    for i, (own, context, length) in enumerate(zip(pages, contexts, lengths, strict=True)):
        past_k, past_v = (x[:, own].flatten(1, 2)[:, :context] for x in (cache_k, cache_v))
        keys = torch.cat((past_k.transpose(0, 1), k[i, :length]))
        values = torch.cat((past_v.transpose(0, 1), v[i, :length]))
        want = loop(q[i, :length], keys, values, context, causal)
        torch.testing.assert_close(got[i, :length].double(), want, atol=1e-5, rtol=1e-5)


def test_preview_of_an_empty_slot_needs_no_mask() -> None:
    q = torch.randn(2, 5, 4, 6, generator=torch.Generator().manual_seed(0))
    k, v = torch.randn(2, 2, 5, 2, 6, generator=torch.Generator().manual_seed(1))
    cache = torch.full((2, 2, 8, 6), float("nan"))
    got = attention(q, k, v, cache, cache, None, None)
    for i in range(2):
        want = loop(q[i], k[i], v[i], 0, False)
        torch.testing.assert_close(got[i].double(), want, atol=1e-5, rtol=1e-5)
