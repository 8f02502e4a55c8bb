"""What the output head must move and compute. Knows nothing of how."""

from blockdiff_kernels.cost import Cost


def cost(rows: int, width: int, vocabulary: int, itemsize: int = 2) -> Cost:
    """Of ``choose`` for hidden rows [rows, width]; a second launch merges parts of the vocabulary."""
    traffic = itemsize * (vocabulary + rows) * width + 16 * rows
    return Cost(traffic, 2 * rows * width * vocabulary, 2)
