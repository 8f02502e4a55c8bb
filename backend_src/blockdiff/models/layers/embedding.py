"""Token embedding, whole or as one rank's rows of the vocabulary.

Knows nothing of the output head, which may have the same rows.
"""

from torch import Tensor
from torch.nn import functional

from blockdiff.models.group import Group


class Embedding:
    """A row of ``rows`` [V, H] per token id."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids [R] int64 -> [R, H]."""
        return functional.embedding(token_ids, self.rows)


class SplitEmbedding(Embedding):
    """Every rank looks up the ids whose rows it has; the sum over the ranks has all."""

    def __init__(self, rows: Tensor, group: Group) -> None:
        super().__init__(rows)
        self.group = group
        self.first = group.rank * rows.shape[0]

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids [R] int64 -> [R, H], the same on every rank."""
        count = self.rows.shape[0]
        index = token_ids - self.first
        is_elsewhere = (index < 0) | (index >= count)
        found = functional.embedding(index.clamp(0, count - 1), self.rows)
        return self.group.all_reduce(found.masked_fill(is_elsewhere.unsqueeze(1), 0))


def make_embedding(rows: Tensor, group: Group) -> Embedding:
    """``rows`` [V here, H] are the ``group.rank``-th of the equal parts of the vocabulary."""
    return Embedding(rows) if group.size == 1 else SplitEmbedding(rows, group)
