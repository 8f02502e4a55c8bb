"""Plain torch definition of looking rows up. Knows nothing of vocabularies."""

from torch import Tensor
from torch.nn import functional


def embedding(
    ids: Tensor, table: Tensor, scale: float | None = None, first: int | None = None
) -> Tensor:
    """See the package."""
    if first is None:
        found = functional.embedding(ids, table)
    else:
        count = table.shape[0]
        index = ids - first
        is_elsewhere = (index < 0) | (index >= count)
        found = functional.embedding(index.clamp(0, count - 1), table)
        found = found.masked_fill(is_elsewhere.unsqueeze(1), 0)
    return found if scale is None else found * scale
