"""Norms of hidden rows and of heads."""

import torch

from blockdiff_kernels.norm import triton, triton_sums
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.norm.sums import Factors, Parallel
from tests.aot.case import Case


def _norm(rows: int, heads: int, width: int, kind: NormKind) -> None:
    x = torch.empty(rows, heads, width, dtype=torch.bfloat16, device="meta")
    weight = None if kind == NormKind.NO_WEIGHT else x.new_empty(heads, width)
    triton.rms_norm(x, weight, 1e-6, kind)


def _gated() -> None:
    x = torch.empty(512, 32, 128, device="meta")
    gate = torch.empty(512, 12352, dtype=torch.bfloat16, device="meta")[:, 8192:12288]
    triton.gated_rms_norm(x, gate.view(512, 32, 128), x.new_empty(128), 1e-6)


def _sums() -> None:
    """Of DiffusionGemma's residual stream."""
    x = torch.empty(512, 2816, dtype=torch.bfloat16, device="meta")
    weight = x.new_empty(2816)
    triton_sums.add_normed(x, x, weight, 1e-6)
    triton_sums.norm_of_sum(x, x, 1e-6)
    factors = Factors(x.new_empty(2), torch.empty(512, dtype=torch.int64, device="meta"))
    triton_sums.add_parallel(x, Parallel(x, x, weight, weight, weight), factors, 1e-6)


CASES = [
    Case("norm/hidden-2048", lambda: _norm(512, 1, 2048, NormKind.ZERO_CENTRED)),
    Case("norm/hidden-4096", lambda: _norm(512, 1, 4096, NormKind.SCALED)),
    Case("norm/heads-128", lambda: _norm(512, 20, 128, NormKind.SCALED)),
    Case("norm/heads-256", lambda: _norm(512, 18, 256, NormKind.ZERO_CENTRED)),
    Case("norm/hidden-2816", lambda: _norm(512, 1, 2816, NormKind.PLAIN)),
    Case("norm/hidden-2816-no-weight", lambda: _norm(512, 1, 2816, NormKind.NO_WEIGHT)),
    Case("norm/35b-gated-heads", _gated),
    Case("norm/gemma-sums", _sums),
]
