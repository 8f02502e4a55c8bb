"""Tile sizes of the gated delta kernels. Knows nothing of what they compute."""

from typing import NamedTuple

from blockdiff_kernels.launch import power_of_two

# two sweeps have their block in one chunk
SWEEP_ROWS = 32
# of kernels that prepare chunks: two of them share a multiprocessor
PREPARE_WARPS = 4


class ScanTile(NamedTuple):
    values: int
    num_warps: int
    num_stages: int


def chunk(longest: int) -> int:
    """Rows of a chunk of segments of up to ``longest`` rows."""
    return 16 if longest <= 16 else 32


def scan(value_dim: int) -> ScanTile:
    """Of the scan over chunks."""
    return ScanTile(min(32, max(16, power_of_two(value_dim))), num_warps=4, num_stages=2)
