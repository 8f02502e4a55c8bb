"""What the output head must move and compute. Knows nothing of how."""

from blockdiff_kernels.cost import Cost


def cost(rows: int, width: int, vocabulary: int, itemsize: int = 2) -> Cost:
    """Of hidden rows [rows, width] whose greatest logit and its probability are wanted."""
    moved = itemsize * (vocabulary + rows) * width + 16 * rows
    return Cost(moved, 2 * rows * width * vocabulary)
