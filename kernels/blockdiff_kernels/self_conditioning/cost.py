"""What the expected embedding of a step's logits must move and compute. Knows nothing of how."""

from blockdiff_kernels.cost import Cost


def cost(rows: int, width: int, vocabulary: int, itemsize: int = 2) -> Cost:
    """Of logits [rows, vocabulary] in float32 and a table [vocabulary, width]."""
    moved = itemsize * (vocabulary + rows) * width + 4 * rows * vocabulary
    return Cost(moved, 2 * rows * width * vocabulary)
