"""Sparse experts with a gated shared expert, fused at load into one stack of experts.

Knows the order of the stack; knows nothing of norms around it or of checkpoints.
"""

from torch import Tensor

from blockdiff.models.layers.experts import Experts
from blockdiff_kernels.moe import route_with_shared, weigh_with_shared


class SparseMoe:
    """Top-k of E routed experts plus the shared expert, for every row by itself."""

    def __init__(self, router: Tensor, experts: Experts, top_k: int) -> None:
        self.router = router  # [E + 1, H], last row: the shared expert's gate
        self.experts = experts  # the shared expert follows the E routed ones, in slices
        self.top_k = top_k

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, H] -> [R, H]."""
        own = self.experts
        logits = x @ self.router.t()
        if own.prefers_all(x.shape[0]):
            return own.weigh_all(x, weigh_with_shared(logits, self.top_k, own.count))
        return own(x, *route_with_shared(logits, self.top_k, own.count))
