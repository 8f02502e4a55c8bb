"""Gated delta layers of 16 key heads and 32 value heads of 128 x 128, convolutions of 4 taps."""

import torch
from torch import Tensor

from blockdiff_kernels.gated_delta import triton
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.segments import Segments
from tests.aot.case import Case

KEY_HEADS, VALUE_HEADS, WIDTH, TAPS = 16, 32, 128, 4
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * WIDTH
LINES = 64


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Of no memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def delta_rows(rows: int, dtype: torch.dtype = torch.bfloat16) -> DeltaRows:
    """Inputs of such a layer."""
    return DeltaRows(
        rows=empty(rows, CHANNELS + VALUE_HEADS * (WIDTH + 2), dtype=dtype),
        conv=empty(CHANNELS, TAPS, dtype=dtype),
        a_log=empty(VALUE_HEADS, dtype=torch.float32),
        dt_bias=empty(VALUE_HEADS, dtype=torch.float32),
        states=empty(LINES, VALUE_HEADS, WIDTH, WIDTH, dtype=torch.float32),
        tails=empty(LINES, TAPS - 1, CHANNELS, dtype=dtype),
    )


def segments_of(count: int, longest: int) -> Segments:
    """``count`` segments."""
    return Segments(*(empty(count, dtype=torch.int32) for _ in range(4)), longest)


def output(rows: int) -> Tensor:
    """What mixers write."""
    return empty(rows, VALUE_HEADS, WIDTH)


def _commit(segments: int, longest: int) -> None:
    rows = segments * longest
    snapshots = empty(segments, dtype=torch.int32)
    own = segments_of(segments, longest)
    triton.commit(delta_rows(rows), own, snapshots, output(rows))


def _preview(segments: int, longest: int) -> None:
    rows = segments * longest
    triton.preview(delta_rows(rows), segments_of(segments, longest), output(rows))


def _two_sweeps(segments: int, longest: int) -> None:
    rows = segments * longest
    inputs, own = delta_rows(rows), segments_of(segments, longest)
    triton.two_sweeps(inputs, empty(CHANNELS, TAPS - 1), own, output(rows))


CASES = [
    Case("gated_delta/commit/T=16", lambda: _commit(4, 16)),
    Case("gated_delta/commit/T=32", lambda: _commit(4, 32)),
    Case("gated_delta/commit/T=512", lambda: _commit(1, 512)),
    Case("gated_delta/preview/T=32", lambda: _preview(16, 32)),
    Case("gated_delta/two-sweeps/T=32", lambda: _two_sweeps(4, 32)),
]
