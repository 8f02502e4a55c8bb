"""Block attention of the families' layers: heads, dimensions, pages or rings, gates."""

from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff_kernels.attention import Past, Sight, triton
from blockdiff_kernels.segments import Segments
from tests.aot.case import Case

BLOCK = 32


class Layer(NamedTuple):
    heads: int
    kv_heads: int
    dim: int
    page_length: int
    window: int | None = None
    is_gated: bool = False
    scale: float | None = None


CLOVER = Layer(16, 2, 256, 32, is_gated=True)
LLADA2 = Layer(16, 4, 128, 32)
LLADA2_FLASH = Layer(32, 4, 128, 32)
SDAR = Layer(32, 4, 128, 16)
CANVAS_FULL = Layer(16, 2, 512, 256, scale=1.0)
CANVAS_SLIDING = Layer(16, 8, 256, 1023, window=1024, scale=1.0)


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _attend(layer: Layer, segments: int, rows: int, context: int, mode: str) -> None:
    """``mode``: preview, causal or blocks."""
    total, width = segments * rows, 2 * (layer.heads + layer.kv_heads)
    projected = _meta(total, width, layer.dim)
    query, key = projected[:, : layer.heads], projected[:, layer.heads :][:, : layer.kv_heads]
    numbers = _meta(segments, dtype=torch.int32)
    pages = (
        None if layer.window else _meta(segments, context // layer.page_length, dtype=torch.int32)
    )
    store = _meta(layer.kv_heads, 4096, layer.page_length, layer.dim)
    sight = Sight(mode != "preview", numbers if mode == "blocks" else None, layer.window)
    triton.block_attention(
        query,
        key,
        key,
        Past(store, store, pages),
        Segments(numbers, numbers, numbers, numbers, rows),
        sight,
        _meta(total, layer.heads, layer.dim),
        gate=query if layer.is_gated else None,
        scale=layer.scale,
    )


def _case(
    name: str, layer: Layer, segments: int, rows: int, context: int, mode: str = "preview"
) -> Case:
    return Case(
        f"attention/{name}-{mode}/G={segments}/T={rows}/context={context}",
        lambda: _attend(layer, segments, rows, context, mode),
        ("block_attention_kernel",),
    )


CASES = [
    _case("clover", CLOVER, 1, BLOCK, 2048),
    _case("clover", CLOVER, 16, BLOCK, 2048),
    _case("clover", CLOVER, 64, BLOCK, 2048),
    _case("clover", CLOVER, 1, BLOCK, 2048, "causal"),
    _case("clover", CLOVER, 1, 2048, 2048, "causal"),
    _case("llada2-mini", LLADA2, 4, BLOCK, 4096),
    _case("llada2-flash", LLADA2_FLASH, 32, BLOCK, 4096),
    _case("llada2-flash", LLADA2_FLASH, 1, 2048, 4096, "blocks"),
    _case("sdar", SDAR, 64, 4, 2048),
    _case("sdar", SDAR, 4, 4, 2048, "blocks"),
    _case("canvas-full", CANVAS_FULL, 1, 256, 4096),
    _case("canvas-full", CANVAS_FULL, 1, 2048, 4096, "causal"),
    _case("canvas-sliding", CANVAS_SLIDING, 4, 256, 4096),
    _case("canvas-sliding", CANVAS_SLIDING, 1, 2048, 4096, "causal"),
]
