"""What attention over a cache must move and compute. Knows nothing of how."""

from blockdiff_kernels.cost import Cost


def cost(
    rows: int, keys: int, segments: int, heads: tuple[int, int], dim: int, itemsize: int = 2
) -> Cost:
    """Of ``segments`` segments of ``rows`` rows that see ``keys`` cached keys and all own ones.

    heads: query heads and key heads. Parts of the keys and their merging are not compulsory.
    """
    query, kv = heads
    own, cached = segments * rows * (2 * query + 2 * kv), segments * keys * 2 * kv
    flops = 4 * segments * rows * (keys + rows) * query * dim
    return Cost((own + cached) * dim * itemsize, flops)
