"""Gated delta layers over flat rows as Triton kernels: chunks are prepared, then scanned.

Two launches, as solving for a chunk's writes needs no state: all chunks do it at the same time, and
what is left to the scan, one after the other, is a few products. Knows nothing of layers.
"""

from torch import Tensor

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
