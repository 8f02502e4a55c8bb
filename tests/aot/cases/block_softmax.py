"""Previews of gated delta layers by block softmax, of the heads of gated_delta's cases."""

import torch

from blockdiff_kernels.block_softmax import triton
from tests.aot.case import Case
from tests.aot.cases.gated_delta import (
    CHANNELS,
    TAPS,
    VALUE_HEADS,
    delta_rows,
    empty,
    output,
    segments_of,
)


def _preview(segments: int, longest: int) -> None:
    rows = segments * longest
    scale, bias, slope = (empty(VALUE_HEADS, dtype=torch.float32) for _ in range(3))
    inputs, own = delta_rows(rows), segments_of(segments, longest)
    right = empty(CHANNELS, TAPS - 1)
    triton.block_softmax(inputs, right, (scale, bias, slope), own, output(rows))


CASES = [
    Case("block_softmax/T=16", lambda: _preview(16, 16)),
    Case("block_softmax/T=32", lambda: _preview(16, 32)),
]
