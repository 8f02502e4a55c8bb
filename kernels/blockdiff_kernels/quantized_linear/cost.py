"""What projections with quantised weights must move and compute. Knows nothing of how."""

from blockdiff_kernels.cost import Cost
from blockdiff_kernels.projection.cost import cost as projection_cost


def cost(
    rows: int, inputs: int, outputs: int, bits: int, group: int | None = None, extra: float = 0
) -> Cost:
    """Of bfloat16 rows; ``group`` inputs of an output share a float32 scale, None: all of them.

    ``extra`` bytes are the source's gate and the residual.
    """
    weight_bytes = bits / 8 + 4 / (group or inputs)
    return projection_cost(rows, inputs, outputs, extra, weight_bytes)
