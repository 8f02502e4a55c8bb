"""What projections must move and compute. Knows nothing of how."""

from blockdiff_kernels.cost import Cost


def cost(rows: int, inputs: int, outputs: int, extra: float = 0, weight_bytes: float = 2) -> Cost:
    """Of bfloat16 rows; ``extra`` bytes are the source's gate and the residual.

    ``weight_bytes`` of one weight, with its part of a scale where there are scales.
    """
    moved = weight_bytes * inputs * outputs + 2 * rows * (inputs + outputs) + extra
    return Cost(moved, 2 * rows * inputs * outputs)
