"""Projections of dense weights: in and out of mixers, dense MLPs, with their sources."""

from collections.abc import Callable

import torch
from torch import Tensor

from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.pointwise.triton import gated_pair
from blockdiff_kernels.projection import GatedNormed, GatedPair, Normed, Plain, Source
from blockdiff_kernels.projection.triton import projection
from tests.aot.case import Case

EPS = 1e-6


def bf16(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device="meta")


def plain(rows: int, width: int) -> Source:
    return Plain(bf16(rows, width))


def normed(rows: int, width: int) -> Source:
    return Normed(bf16(rows, width), bf16(width), EPS, NormKind.ZERO_CENTRED)


def heads(rows: int, width: int) -> Source:
    """Heads of 128, the gate a part of the hybrid model's projected rows."""
    x = torch.empty(rows, width // 128, 128, device="meta")
    gate = bf16(rows, 12352)[:, 8192 : 8192 + width].view(rows, -1, 128)
    return GatedNormed(x, gate, torch.empty(128, device="meta"), EPS)


def pair(rows: int, width: int) -> Source:
    return GatedPair(bf16(rows, 2 * width))


def gelu_pair(rows: int, width: int) -> Source:
    return GatedPair(bf16(rows, 2 * width), "gelu_tanh")


Make = Callable[[int, int], Source]
# name, source, columns, outputs, whether a residual is added, rows of rounds
SHAPES: list[tuple[str, Make, int, int, bool, tuple[int, ...]]] = [
    ("35b-delta-in", normed, 2048, 12352, False, (32, 64, 128)),
    ("35b-delta-in-normed", plain, 2048, 12352, False, (512, 2048)),
    ("35b-delta-out", heads, 4096, 2048, True, (32,)),
    ("35b-delta-out-normed", plain, 4096, 2048, True, (64, 512, 2048)),
    ("35b-attention-in", normed, 2048, 9216, False, (32, 128)),
    ("35b-attention-out", plain, 4096, 2048, True, (32,)),
    ("mini-attention-in", normed, 2048, 3072, False, (32,)),
    ("mini-dense-down", pair, 5120, 2048, True, (32,)),
    ("flash-attention-in", normed, 4096, 5120, False, (64, 128)),
    ("sdar-30b-in", normed, 2048, 5120, False, (64, 128)),
    ("gemma-dense-in", normed, 2816, 4224, False, (128,)),
    ("gemma-dense-down", gelu_pair, 2112, 2816, False, (64,)),
    ("gemma-full-out", plain, 8192, 2816, False, (32, 2048)),
]


def case(name: str, make: Make, columns: int, outputs: int, has_residual: bool, rows: int) -> Case:
    def call() -> Tensor:
        residual = bf16(rows, outputs) if has_residual else None
        return projection(make(rows, columns), bf16(outputs, columns), residual)

    return Case(f"projection/{name}/T={rows}", call, ("projection_kernel",))


CASES = [case(*shape, count) for *shape, rows in SHAPES for count in rows]
CASES += [Case("projection/gated-pairs", lambda: gated_pair(bf16(512, 10240), False))]
