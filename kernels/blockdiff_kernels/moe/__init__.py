"""Sparse mixture of experts with a softmax router and a gated shared expert.

p = softmax(router x); keep the top k, divide by their sum -> w
y = sum_e w_e down_e^T (silu(gate_e x) * up_e x)  +  sigmoid(shared_gate x) shared(x)
"""

import torch
from torch import Tensor

from blockdiff_kernels.moe import reference

# up to this many experts per chosen one, computing them all beats sorting rows
DENSE_EXPERTS = 32


def route(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Weights [R, k] float32 (sum 1) and expert ids [R, k] int64 from router logits [R, E]."""
    return reference.route(logits, top_k)


def experts(x: Tensor, weights: Tensor, ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Weighted sum of the chosen experts; returns y [R, H] in ``x.dtype``.

    x [R, H]; weights [R, k]; ids [R, k] int64, distinct in a row; gate_up [E, 2I, H] with the gate
    rows first; down [E, I, H] (that is: transposed, so that all experts form one matrix).
    """
    if down.shape[0] <= DENSE_EXPERTS:
        return reference.dense_experts(x, weights, ids, gate_up, down)
    return reference.grouped_experts(x, weights, ids, gate_up, down)


def moe(
    x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, num_experts: int, top_k: int
) -> Tensor:
    """Router, chosen experts and gated shared expert; returns y [R, H] in ``x.dtype``.

    x [R, H]; router [E + 1, H], its last row the shared expert's gate;
    gate_up [E + N, 2I, H], down [E + N, I, H]: the routed experts, then the shared expert as N
    experts of the same width (slices of its inner axis, zero-filled), which every row uses.
    """
    logits = x @ router.t()
    weights, ids = route(logits[:, :num_experts], top_k)
    shared = down.shape[0] - num_experts
    gate = logits[:, num_experts:].to(weights.dtype).sigmoid().expand(-1, shared)
    always = torch.arange(num_experts, down.shape[0], device=x.device).expand(x.shape[0], -1)
    return experts(
        x, torch.cat((weights, gate), dim=1), torch.cat((ids, always), dim=1), gate_up, down
    )
