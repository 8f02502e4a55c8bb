"""Rows of a table: y_r = scale * table[id_r], or table[id_r - first] of a table that is a part.

A part gives zeros for ids that it does not have.
"""

from torch import Tensor

from blockdiff_kernels.embedding import reference
from blockdiff_kernels.implementation import TRITON, choose


def embedding(
    ids: Tensor, table: Tensor, scale: float | None = None, first: int | None = None
) -> Tensor:
    """[R, H] in the dtype of ``table`` [V, H] for ids [R] int64.

    ``first`` None: ids are below V; else the table has the rows of ids from ``first`` on.
    """
    if choose("embedding", table.device) is TRITON:
        from blockdiff_kernels.embedding import triton

        return triton.embedding(ids, table, scale, first)
    return reference.embedding(ids, table, scale, first)
