"""Token embedding, whole or as one rank's rows of the vocabulary.

Knows nothing of the output head, which may have the same rows.
"""

from torch import Tensor

from blockdiff.models.group import Group
from blockdiff_kernels.embedding import embedding


class Embedding:
    """A row of ``rows`` [V, H] per token id, multiplied by ``scale`` if there is one."""

    def __init__(self, rows: Tensor, scale: float | None = None) -> None:
        """``scale`` is a number of the rows' dtype."""
        self.rows = rows
        self.scale = scale

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids [R] int64 -> [R, H]."""
        return embedding(token_ids, self.rows, self.scale)


class SplitEmbedding(Embedding):
    """Every rank looks up the ids whose rows it has; the sum over the ranks has all."""

    def __init__(self, rows: Tensor, group: Group, scale: float | None = None) -> None:
        super().__init__(rows, scale)
        self.group = group
        self.first = group.rank * rows.shape[0]

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids [R] int64 -> [R, H], the same on every rank."""
        return self.group.all_reduce(embedding(token_ids, self.rows, self.scale, self.first))


def make_embedding(rows: Tensor, group: Group, scale: float | None = None) -> Embedding:
    """``rows`` [V here, H] are the ``group.rank``-th of the equal parts of the vocabulary."""
    return Embedding(rows, scale) if group.size == 1 else SplitEmbedding(rows, group, scale)
