"""What looking up embeddings must move. Knows nothing of how."""

from blockdiff_kernels.cost import Cost


def cost(rows: int, width: int, itemsize: int = 2) -> Cost:
    """Of ``rows`` rows of a table, read and written once."""
    return Cost(2 * rows * width * itemsize, 0)
