"""What routing and experts must move and compute. Knows nothing of how."""

from blockdiff_kernels.cost import Cost


def routing_cost(rows: int, hidden: int, outputs: int, chosen: int, itemsize: int = 2) -> Cost:
    """Of choosing experts: the router [outputs, hidden] once, rows in and out, three numbers for
    each of ``chosen`` entries of a row."""
    moved = itemsize * (hidden * outputs + 2 * rows * hidden) + 4 * 3 * rows * chosen
    return Cost(moved, 2 * rows * hidden * outputs)


def experts_cost(
    rows: int, distinct: float, chosen: int, hidden: int, inner: int, expert_bytes: float
) -> Cost:
    """Of what ``chosen`` experts do with each row: ``distinct`` experts of ``expert_bytes`` bytes
    are read once; entries in and out of both products, in bfloat16."""
    entries = rows * chosen
    moved = 2 * entries * 2 * (hidden + inner) + distinct * expert_bytes
    return Cost(moved, 6 * entries * hidden * inner, launches=2)
