"""Attention over keys laid out by position, so that a row's bits depend on what it sees alone.

Keys lie in tiles of ``KEY_TILE`` positions of a grid from position 0 on, whether they come from a
cache or from the round. Every product and every sum has the shape of one tile; tiles are added in
order. A tile of which a row sees nothing adds exact zeros, so neither the longest context of the
round nor the split of a sequence into segments reaches the result.

s_ij = scale q_i . k_j;  m_i = max_j s_ij;  o_i = sum_tiles sum_j exp(s_ij - m_i) v_j / (same, v 1)

The plain twin is ``reference.attention``. Knows nothing of pages, of layers or of rounds.
"""

import torch
from torch import Tensor

from blockdiff_kernels.row_tiles import RowTiles

KEY_TILE = 128
# rows whose scores exist at one time
QUERY_ROWS = 128


def attention_by_position(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    scale: float,
    tiles: RowTiles,
) -> Tensor:
    """Attend; returns o [G, T, Hq, D] in ``query.dtype``, computed in float32.

    query [G, T, Hq, D]; key, value [Hkv, G, M, D], M a multiple of ``KEY_TILE``;
    visible [G, tiles, T, 1, KEY_TILE] bool, at least one True for every row.
    """
    parts = [
        _attend(rows, key.float(), value.float(), seen, scale, tiles)
        for rows, seen in zip(
            query.split(QUERY_ROWS, dim=1), visible.split(QUERY_ROWS, dim=2), strict=True
        )
    ]
    mixed = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return mixed.to(query.dtype)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float, tiles: RowTiles
) -> Tensor:
    segments, length, heads, dim = query.shape
    kv_heads, count = key.shape[0], key.shape[2] // KEY_TILE
    repeats = heads // kv_heads
    # [Hkv, G, tiles, T, repeats]: query heads that share a key head are rows beside each other
    shape = (kv_heads, segments, count, length, repeats)
    rows = query.float().view(segments, length, kv_heads, repeats, dim).permute(2, 0, 1, 3, 4)
    rows = rows.unsqueeze(2).expand(*shape, dim).reshape(-1, length * repeats, dim)
    k, v = (x.reshape(-1, KEY_TILE, dim) for x in (key, value))

    def score(some: Tensor) -> Tensor:
        return torch.bmm(some, k.transpose(1, 2))

    def mix(some: Tensor) -> Tensor:
        return torch.bmm(some, v)

    scores = tiles.run(("scores", dim), score, rows, 1).mul_(scale).view(*shape, KEY_TILE)
    scores.masked_fill_(~visible, -torch.inf)
    weights = scores.sub_(scores.amax((2, -1), keepdim=True)).exp_()
    total = _in_order(weights.sum(-1, keepdim=True))
    flat = weights.view(-1, length * repeats, KEY_TILE)
    mixed = _in_order(tiles.run(("mix", dim), mix, flat, 1).view(*shape, dim))
    return (mixed / total).permute(1, 2, 0, 3, 4).reshape(segments, length, heads, dim)


def _in_order(parts: Tensor) -> Tensor:
    """Sum over the tiles [Hkv, G, tiles, ...] one after the other."""
    first, *others = parts.unbind(2)
    for other in others:
        first = first + other
    return first
