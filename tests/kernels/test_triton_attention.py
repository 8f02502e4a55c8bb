"""Block attention kernels against a float64 loop, nan in all memory that is not theirs.

Run: pytest tests/kernels
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.attention import Past, Sight, block_attention, tiles
from blockdiff_kernels.implementation import using
from blockdiff_kernels.segments import Segments
from tests.kernels.errors import assert_near

NAN = float("nan")


@dataclass(frozen=True)
class Shape:
    """What is attended: every segment as (rows, cached rows)."""

    segments: tuple[tuple[int, int], ...]
    heads: int = 8
    kv_heads: int = 1
    dim: int = 32
    page_length: int = 16
    is_causal: bool = False
    block: int | None = None
    window: int | None = None
    is_gated: bool = False
    scale: float | None = None
    cap: float | None = None
    dtype: torch.dtype = torch.float32


@dataclass
class Round:
    """Tensors of one shape; rows of no segment, unused places and pages hold nan."""

    query: Tensor
    key: Tensor
    value: Tensor
    gate: Tensor | None
    past: Past
    segments: Segments
    sight: Sight
    cached: list[tuple[Tensor, Tensor]]  # per segment [context, Hkv, D], nan where not kept


def make_round(shape: Shape) -> Round:
    """Segments lie apart from each other; pages and state lines are given out in random order."""
    generator = torch.Generator().manual_seed(7)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(shape.dtype)

    lengths, contexts = ([own[i] for own in shape.segments] for i in range(2))
    starts, total = [], 1
    for length in lengths:
        starts.append(total)
        total += length + 2
    heads = shape.heads + 2 * shape.kv_heads + (shape.heads if shape.is_gated else 0)
    projected = torch.full((total, heads, shape.dim), NAN, dtype=shape.dtype)
    for start, length in zip(starts, lengths, strict=True):
        projected[start : start + length] = random(length, heads, shape.dim)
    sizes = (shape.heads, shape.kv_heads, shape.kv_heads, heads - shape.heads - 2 * shape.kv_heads)
    query, key, value, gate = projected.split_with_sizes(sizes, 1)
    groups, places = len(lengths), 0 if shape.window is None else shape.page_length
    counts = [1 if places else -(-context // shape.page_length) for context in contexts]
    order = torch.randperm(sum(counts) + 3, generator=generator).to(torch.int32)
    store = (shape.kv_heads, len(order), shape.page_length, shape.dim)
    keys, values = (torch.full(store, NAN, dtype=shape.dtype) for _ in range(2))
    # surplus entries name a page nobody owns
    pages = order[-1].repeat(groups, max(counts, default=0) + 1)
    slots, cached, used = torch.zeros(groups, dtype=torch.int32), [], 0
    for number, (context, count) in enumerate(zip(contexts, counts, strict=True)):
        own, used = order[used : used + count].long(), used + count
        pages[number, :count], slots[number] = own, own[0] if count else 0
        rows = tuple(random(context, shape.kv_heads, shape.dim) for _ in range(2))
        for position in range(context):
            page = own[0 if places else position // shape.page_length]
            for kept, row in zip((keys, values), rows, strict=True):
                kept[:, page, position % shape.page_length] = row[position]
        cached.append(rows)
    numbers = (torch.tensor(own, dtype=torch.int32) for own in (starts, lengths, contexts))
    blocks = None if shape.block is None else torch.full((groups,), shape.block, dtype=torch.int32)
    return Round(
        query,
        key,
        value,
        gate if shape.is_gated else None,
        Past(keys, values, None if places else pages),
        Segments(*numbers, slots, max(lengths, default=0)),
        Sight(shape.is_causal, blocks, shape.window),
        cached,
    )


def sees(shape: Shape, context: int, row: int, key: int) -> bool:
    """Whether the row of absolute position ``row`` sees that of ``key``."""
    if not shape.is_causal:
        return key >= context or shape.window is None or key > context - shape.window
    if shape.block is not None:
        return key // shape.block <= row // shape.block
    return key <= row and (shape.window is None or key > row - shape.window)


def exact(shape: Shape, given: Round) -> Tensor:
    """The definition, row by row in float64; nan in rows of no segment."""
    out = torch.full(given.query.shape, NAN, dtype=torch.float64)
    scale = shape.dim**-0.5 if shape.scale is None else shape.scale
    repeats, starts = shape.heads // shape.kv_heads, given.segments.starts.tolist()
    for number, (length, context) in enumerate(shape.segments):
        rows = slice(starts[number], starts[number] + length)
        keys, values = (
            torch.cat((past, own[rows])).double().repeat_interleave(repeats, 1)
            for past, own in zip(given.cached[number], (given.key, given.value), strict=True)
        )
        for row in range(length):
            seen = [i for i in range(len(keys)) if sees(shape, context, context + row, i)]
            query = given.query[rows][row].double()
            scores = torch.einsum("hd,jhd->hj", query, keys[seen]) * scale
            if shape.cap is not None:
                scores = shape.cap * (scores / shape.cap).tanh()
            mixed = torch.einsum("hj,jhd->hd", scores.softmax(1), values[seen])
            if given.gate is not None:
                mixed = mixed * given.gate[rows][row].double().sigmoid()
            out[rows][row] = mixed
    return out


def check(shape: Shape, implementation: str = "triton") -> None:
    """Rows of segments are near, others are left alone."""
    given = make_round(shape)
    want = exact(shape, given)
    out = torch.full(given.query.shape, NAN, dtype=shape.dtype)
    with using(implementation):
        block_attention(
            given.query,
            given.key,
            given.value,
            given.past,
            given.segments,
            given.sight,
            out,
            gate=given.gate,
            scale=shape.scale,
            cap=shape.cap,
        )
    is_own = ~want.isnan()
    assert torch.equal(~out.isnan(), is_own)
    assert_near(out[is_own], want[is_own])


ODD = ((5, 0), (0, 9), (3, 1), (7, 15), (1, 16), (4, 17), (9, 40))
SHAPES = {
    "preview": Shape(ODD),
    "causal": Shape(ODD, is_causal=True),
    "blocks": Shape(((6, 4), (8, 0), (5, 15), (3, 33), (0, 0)), is_causal=True, block=4),
    "gated": Shape(ODD, is_gated=True, heads=4, kv_heads=2, dim=16),
    "gated-causal": Shape(ODD, is_gated=True, is_causal=True, dim=48),
    "one-to-one": Shape(ODD, heads=2, kv_heads=2, dim=64),
    "four-to-one": Shape(ODD, heads=8, kv_heads=2, is_causal=True, page_length=5),
    "three-to-one": Shape(ODD, heads=6, kv_heads=2, page_length=64),
    "long-rows": Shape(((40, 33), (2, 0)), heads=4, is_causal=True),
    "dim-256": Shape(((3, 17),), heads=8, dim=256, is_gated=True),
    "dim-512": Shape(((5, 9), (2, 33)), heads=8, dim=512, scale=1.0, page_length=32),
    "capped": Shape(ODD, cap=3.0, scale=1.0),
    "ring-canvas": Shape(((4, 0), (9, 5), (3, 11), (6, 40)), page_length=11, window=12, heads=2),
    "ring-encoder": Shape(
        ((4, 0), (40, 5), (3, 11), (30, 40)), page_length=11, window=12, heads=2, is_causal=True
    ),
    "ring-aligned": Shape(
        ((40, 3), (5, 70)), page_length=64, window=64, heads=2, is_causal=True, scale=1.0
    ),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_float32(shape: Shape) -> None:
    check(shape)


@pytest.mark.parametrize("name", ["gated-causal", "blocks", "dim-256", "ring-canvas"])
def test_bfloat16(name: str) -> None:
    check(replace(SHAPES[name], dtype=torch.bfloat16))


@pytest.mark.parametrize(
    "shape",
    [
        Shape(((5, 300), (0, 0), (9, 1), (3, 40)), is_gated=True),
        Shape(((5, 300), (12, 3)), is_gated=True, is_causal=True, dtype=torch.bfloat16),
        Shape(((5, 90), (30, 0), (4, 7)), page_length=63, window=64, is_causal=True, kv_heads=2),
        Shape(((17, 180), (3, 0)), page_length=127, window=128, scale=1.0, dim=80),
    ],
    ids=["preview", "causal", "ring-encoder", "ring-canvas"],
)
def test_parts_of_keys(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some parts have keys that no row sees or no keys at all."""
    monkeypatch.setattr(tiles, "KEYS_PER_PART", 32)
    seen = _count_parts(monkeypatch)
    check(shape)
    assert max(seen) >= 2


def _count_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    from blockdiff_kernels.attention import triton

    seen: list[int] = []
    plain: Callable[..., int] = triton.count_parts

    def counting(*arguments: object) -> int:
        seen.append(plain(*arguments))
        return seen[-1]

    monkeypatch.setattr(triton, "count_parts", counting)
    return seen


@pytest.mark.parametrize(
    "name", ["gated-causal", "blocks", "capped", "ring-canvas", "ring-encoder"]
)
def test_the_plain_twin(name: str) -> None:
    check(SHAPES[name], "reference")


def test_parts_fill_the_device_and_are_not_too_short() -> None:
    assert tiles.count_parts(8, 2080, (9, 0)) == 16
    assert tiles.count_parts(8, 200, (9, 0)) == 1
    assert tiles.count_parts(1, 1 << 20, (9, 0)) == tiles.MOST_PARTS
    assert tiles.count_parts(200, 1 << 20, (9, 0)) == 1
