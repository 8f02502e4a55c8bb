"""Head norms, turns and writes of the families' attention, and a round's angles."""

import torch
from torch import Tensor

from blockdiff_kernels.rope import HeadNorm, Heads, Scaling, Store, angles, triton
from tests.aot.case import Case

ROWS = 512


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _store(kv_heads: int, page_length: int, dim: int) -> Store:
    pages = _meta(kv_heads, 4096, page_length, dim)
    return Store(pages, pages, _meta(ROWS, dtype=torch.int64))


def _turn(
    heads: Heads, dim: int, rotary_dim: int, scaling: Scaling, page_length: int | None, width: int
) -> None:
    turns = _meta(ROWS, rotary_dim // 2, dtype=torch.float32)
    norm = HeadNorm(_meta(heads.query + heads.kv, dim), 1e-6, scaling)
    store = None if page_length is None else _store(heads.kv, page_length, dim)
    triton.turn_and_write(_meta(ROWS, width, dim), norm, (turns, turns), heads, store)


def _write() -> None:
    rows = _meta(ROWS, 8, 256)
    triton.write_rows(rows, rows, _store(8, 1024, 256))


def _angles(rotary_dim: int) -> None:
    positions = _meta(ROWS, dtype=torch.int64)
    angles.angles(positions, _meta(rotary_dim // 2, dtype=torch.float32))


PLAIN, CENTRED = Scaling.SCALED, Scaling.ZERO_CENTRED
CASES = [
    Case("rope/clover", lambda: _turn(Heads(16, 2, 18), 256, 64, CENTRED, 32, 36)),
    Case("rope/llada2-mini", lambda: _turn(Heads(16, 4, 20), 128, 64, PLAIN, 32, 24)),
    Case("rope/sdar", lambda: _turn(Heads(32, 4, 36), 128, 128, PLAIN, 16, 40)),
    Case("rope/canvas-full", lambda: _turn(Heads(16, 2, 16, True), 512, 512, PLAIN, 256, 18)),
    Case("rope/canvas-sliding", lambda: _turn(Heads(16, 8, 24, True), 256, 256, PLAIN, None, 32)),
    Case("rope/write-rings", _write),
    Case("rope/angles-64", lambda: _angles(64)),
    Case("rope/angles-512", lambda: _angles(512)),
]
