"""What norms must move and compute. Knows nothing of how."""

from blockdiff_kernels.cost import Cost


def cost(rows: int, width: int, itemsize: int = 2) -> Cost:
    """Of ``rms_norm`` of [rows, width]."""
    return Cost(2 * rows * width * itemsize, 4 * rows * width)
