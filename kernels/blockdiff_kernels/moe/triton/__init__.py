"""Routing and experts as Triton kernels: scores, choice, grouping by expert, grouped products.

Knows nothing of layers.
"""

from blockdiff_kernels.moe.triton.products import apply_experts
from blockdiff_kernels.moe.triton.routing import choose_experts

__all__ = ["apply_experts", "choose_experts"]
