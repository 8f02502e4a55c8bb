"""Attention of blocks over paged caches, and the norms and turns before it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff_kernels.attention import Past, Sight, block_attention
from blockdiff_kernels.attention.cost import cost as attention_cost
from blockdiff_kernels.rope import HeadNorm, Heads, Scaling, Store, turn_and_write
from blockdiff_kernels.rope.cost import cost as rope_cost
from blockdiff_kernels.segments import Segments
from perf.gpu.case import Maker, OpCase, Work
from perf.gpu.sizes import Sizes

EPS = 1e-6


def cases(sizes: Sizes, rows: Sequence[int]) -> list[OpCase]:
    """Previews, commits, and the rows of both before they attend."""
    heads = (sizes.heads, sizes.kv_heads)
    found = []
    for count in rows:
        blocks = count // sizes.block
        own = attention_cost(sizes.block, sizes.context, blocks, heads, sizes.head_dim)
        for name, is_causal in (("preview", False), ("commit", True)):
            found.append(OpCase("attention", name, count, _attend(count, sizes, is_causal), own))
        for name, written in (("preview", 0), ("commit", count)):
            total = rope_cost(count, written, heads, sizes.head_dim)
            found.append(OpCase("rope", name, count, _turn(count, sizes, written > 0), total))
    return found


class Pages(NamedTuple):
    keys: Tensor
    values: Tensor
    table: Tensor  # [G, P] int32


def _pages(maker: Maker, sizes: Sizes, blocks: int) -> Pages:
    """Pages of a block's length each, given out in random order."""
    each = sizes.context // sizes.block + 1
    shape = (sizes.kv_heads, blocks * each, sizes.block, sizes.head_dim)
    keys, values = maker.normal(*shape), maker.normal(*shape)
    return Pages(keys, values, maker.order(blocks * each).view(blocks, each))


def _attend(rows: int, sizes: Sizes, is_causal: bool) -> Callable[[Maker], Work]:
    def make(maker: Maker) -> Work:
        blocks, block = rows // sizes.block, sizes.block
        counts = (sizes.heads, sizes.kv_heads, sizes.kv_heads, sizes.heads)
        projected = maker.normal(rows, sum(counts), sizes.head_dim)
        query, key, value, gate = projected.split_with_sizes(counts, 1)
        keys, values, table = _pages(maker, sizes, blocks)
        segments = Segments(
            maker.ints(range(0, rows, block)),
            maker.ints([block] * blocks),
            maker.ints([sizes.context] * blocks),
            maker.ints(range(blocks)),
            block,
        )
        past, sight = Past(keys, values, table), Sight(is_causal)
        out = maker.poisoned(rows, sizes.heads, sizes.head_dim)

        def run() -> list[Tensor]:
            block_attention(query, key, value, past, segments, sight, out, gate=gate)
            return [out]

        return Work(run)

    return make


def _turn(rows: int, sizes: Sizes, is_written: bool) -> Callable[[Maker], Work]:
    def make(maker: Maker) -> Work:
        kinds = sizes.heads + sizes.kv_heads
        projected = maker.normal(rows, 2 * kinds, sizes.head_dim)
        norm = HeadNorm(maker.normal(kinds, sizes.head_dim, scale=0.1), EPS, Scaling.ZERO_CENTRED)
        half = sizes.rotary_dim // 2
        angles = maker.normal(rows, half, dtype=maker.state_dtype)
        turns = (angles.cos(), angles.sin())
        pages = _pages(maker, sizes, rows // sizes.block)
        keys, values = torch.zeros_like(pages.keys), torch.zeros_like(pages.values)
        store = Store(keys, values, maker.order(keys.shape[1] * keys.shape[2])[:rows].long())
        heads = Heads(sizes.heads, sizes.kv_heads, kinds)

        def run() -> list[Tensor]:
            turned, own = turn_and_write(
                projected, norm, turns, heads, store if is_written else None
            )
            return [turned, own, *([keys, values] if is_written else [])]

        return Work(run)

    return make
