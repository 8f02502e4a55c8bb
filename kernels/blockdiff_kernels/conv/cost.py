"""What the short convolution must move and compute. Knows nothing of how."""

from blockdiff_kernels.cost import Cost


def cost(rows: int, channels: int, taps: int, itemsize: int = 2) -> Cost:
    """Of [rows, channels], as a kernel of its own."""
    moved = 2 * rows * channels + channels * taps
    return Cost(moved * itemsize, 2 * rows * channels * taps)
