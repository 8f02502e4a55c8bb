"""Norms of hidden rows and of heads."""

import torch

from blockdiff_kernels.norm import triton
from blockdiff_kernels.norm.kinds import NormKind
from tests.aot.case import Case


def _norm(rows: int, heads: int, width: int, kind: NormKind) -> None:
    x = torch.empty(rows, heads, width, dtype=torch.bfloat16, device="meta")
    weight = None if kind == NormKind.NO_WEIGHT else x.new_empty(heads, width)
    triton.rms_norm(x, weight, 1e-6, kind)


CASES = [
    Case("norm/hidden-2048", lambda: _norm(512, 1, 2048, NormKind.ZERO_CENTRED)),
    Case("norm/hidden-4096", lambda: _norm(512, 1, 4096, NormKind.SCALED)),
    Case("norm/heads-128", lambda: _norm(512, 20, 128, NormKind.SCALED)),
    Case("norm/heads-256", lambda: _norm(512, 18, 256, NormKind.ZERO_CENTRED)),
    Case("norm/hidden-2816", lambda: _norm(512, 1, 2816, NormKind.PLAIN)),
    Case("norm/hidden-2816-no-weight", lambda: _norm(512, 1, 2816, NormKind.NO_WEIGHT)),
]
