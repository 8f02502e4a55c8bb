"""The output head with a packed weight, which is not cut into tiles. Knows nothing of sampling."""

from torch import Tensor

from blockdiff_kernels.packed import packed_linear


def logits(hidden: Tensor, packed: Tensor, cap: float | None = None) -> Tensor:
    """See the package."""
    scores = packed_linear(hidden, packed).float()
    return scores if cap is None else scores.div_(cap).tanh_().mul_(cap)
