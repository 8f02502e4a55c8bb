"""What norms, turning and writing of heads must move and compute. Knows nothing of how."""

from blockdiff_kernels.cost import Cost


def cost(rows: int, written: int, heads: tuple[int, int], dim: int, itemsize: int = 2) -> Cost:
    """Of ``rows`` rows of which ``written`` go to the store; heads: query heads and key heads.

    The rows of query, key and value heads count once in and once out, whatever is written.
    """
    query, kv = heads
    width = (query + 2 * kv) * dim
    return Cost((2 * rows * width + 2 * written * kv * dim) * itemsize, 10 * rows * width)


def angles_cost(rows: int, half: int) -> Cost:
    """Of the cosines and sines of [rows] positions for ``half`` frequencies."""
    return Cost(8 * rows + 4 * half + 8 * rows * half, 30 * rows * half)
