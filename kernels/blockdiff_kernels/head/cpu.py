"""The output head with a packed weight, which is not cut into tiles. Knows nothing of sampling."""

from collections.abc import Sequence

from torch import Tensor

from blockdiff_kernels.packed import packed_linear


def logits(hidden: Tensor, packed: Tensor, cap: float | None = None) -> Tensor:
    """See the package."""
    scores = packed_linear(hidden, packed).float()
    return scores if cap is None else scores.div_(cap).tanh_().mul_(cap)


def best_tokens(
    hidden: Tensor, packed: Tensor, excluded: Sequence[int] = (), cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """See the package."""
    scores = logits(hidden, packed, cap)
    for token in excluded:
        scores[:, token] = float("-inf")
    best, ids = scores.max(dim=-1)
    return ids, 1.0 / scores.sub_(best.unsqueeze(1)).exp_().sum(-1)
