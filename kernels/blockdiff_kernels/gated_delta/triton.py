"""Gated delta layers over flat rows as Triton kernels: chunks are prepared, then scanned.

Two launches, as solving for a chunk's writes needs no state: all chunks do it at the same time, and
what is left to the scan, one after the other, is a few products. Knows nothing of layers.
"""

from torch import Tensor

from blockdiff_kernels.conv.triton import cost as conv_cost
from blockdiff_kernels.cost import Cost
from blockdiff_kernels.gated_delta import tiles
from blockdiff_kernels.gated_delta.mirror import add_mirror
from blockdiff_kernels.gated_delta.prepare import prepare
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.gated_delta.scan import scan
from blockdiff_kernels.segments import Segments


def commit(inputs: DeltaRows, segments: Segments, snapshots: Tensor | None, out: Tensor) -> None:
    """See ``commit_rows`` of the package."""
    prepared = prepare(inputs, segments, tiles.chunk(segments.longest))
    scan(inputs, prepared, segments, out, keeps=True, snapshots=snapshots)


def preview(inputs: DeltaRows, segments: Segments, out: Tensor) -> None:
    """See ``preview_rows`` of the package."""
    prepared = prepare(inputs, segments, tiles.chunk(segments.longest))
    scan(inputs, prepared, segments, out, keeps=False)


def two_sweeps(inputs: DeltaRows, right_weight: Tensor, segments: Segments, out: Tensor) -> None:
    """See ``two_sweep_rows`` of the package."""
    assert segments.longest <= tiles.SWEEP_ROWS, "both sweeps are in one chunk"
    prepared = prepare(inputs, segments, tiles.chunk(segments.longest), right_weight)
    prepared = add_mirror(inputs, prepared, segments)
    scan(inputs, prepared, segments, out, keeps=False)


def scan_cost(inputs: DeltaRows, segments: int, rows: int, keeps: bool, itemsize: int = 2) -> Cost:
    """Of the solve and the state alone: ``segments`` of ``rows`` convolved rows each."""
    _, value_heads, key_dim, value_dim = inputs.states.shape
    channels = inputs.conv.shape[0]
    state = key_dim * value_dim * inputs.states.element_size() * (2 if keeps else 1)
    moved = rows * (channels + value_heads * value_dim) * itemsize
    flops = 2 * rows * rows * (2 * key_dim + value_dim * 2) + rows**3 * 20 / 3
    flops += 2 * rows * key_dim * value_dim * (3 if keeps else 2)
    return Cost(segments * (value_heads * state + moved), segments * value_heads * flops)


def cost(inputs: DeltaRows, segments: int, rows: int, keeps: bool, itemsize: int = 2) -> Cost:
    """Of ``commit`` or ``preview``: no convolved row reaches memory in what is charged."""
    channels, taps = inputs.conv.shape
    convolution = conv_cost(segments * rows, channels, taps, itemsize)
    scan = scan_cost(inputs, segments, rows, keeps, itemsize)
    saved = 2 * segments * rows * channels * itemsize
    return Cost(convolution.bytes + scan.bytes - saved, convolution.flops + scan.flops, 2)
