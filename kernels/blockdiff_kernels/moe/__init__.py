"""Sparse mixture of experts: a softmax router with a gated shared expert, and its parts.

p = softmax(router x); keep the top k, divide by their sum -> w
y = sum_e w_e down_e^T (silu(gate_e x) * up_e x)  +  sigmoid(shared_gate x) shared(x)

The shared expert follows the E routed ones as N experts of the same width (slices of its inner
axis, zero-filled), which every row uses.

route_groups: s = sigmoid(router x); choose by s + bias: keep the groups whose two best sum highest,
then the top k inside them; w = scale * s / (sum of the chosen s + 1e-20), not divided for k = 1
"""

import torch
from torch import Tensor

from blockdiff_kernels.moe import reference

# few rows through few experts: computing them all costs less than sorting rows by expert
DENSE_EXPERTS = 32
DENSE_ROWS_TIMES_EXPERTS = 512


def route(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Weights [R, k] float32 (sum 1) and expert ids [R, k] int64 from router logits [R, E]."""
    return reference.route(logits, top_k)


def route_groups(
    logits: Tensor, bias: Tensor, top_k: int, groups: int, kept_groups: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Weights [R, k] float32 and expert ids [R, k] int64 from logits [R, E] and ``bias`` [E]."""
    return reference.route_groups(logits, bias, top_k, groups, kept_groups, scale)


def route_with_shared(logits: Tensor, top_k: int, total: int) -> tuple[Tensor, Tensor]:
    """Weights [R, k + N] float32 and ids [R, k + N] int64, the gated shared experts last.

    logits [R, E + 1], the last one the shared expert's gate; ``total`` is E + N.
    """
    routing, opened = _open_shared(logits, total)
    weights, ids = route(routing, top_k)
    always = torch.arange(routing.shape[1], total, device=ids.device).expand(ids.shape[0], -1)
    return torch.cat((weights, opened), dim=1), torch.cat((ids, always), dim=1)


def weigh_with_shared(logits: Tensor, top_k: int, total: int) -> Tensor:
    """The same choice as weights [R, E + N] float32 of every expert, zero where not chosen."""
    routing, opened = _open_shared(logits, total)
    return torch.cat((reference.dense_weights(routing, top_k), opened), dim=1)


def prefers_all_experts(rows: int, total: int) -> bool:
    """Whether ``all_experts`` is faster than ``experts`` for so many rows and experts."""
    return total <= DENSE_EXPERTS and total * rows <= DENSE_ROWS_TIMES_EXPERTS


def experts(x: Tensor, weights: Tensor, ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Weighted sum of each row's experts; returns y [R, H] in ``x.dtype``.

    x [R, H]; weights [R, k] float32; ids [R, k] int64, distinct in a row but for E, which stands
    for an expert that is elsewhere and adds nothing; gate_up [E, 2I, H] with the gate rows first;
    down [E, I, H] (that is: transposed, so that all experts form one matrix).
    """
    total = down.shape[0]
    if prefers_all_experts(x.shape[0], total):
        dense = weights.new_zeros(x.shape[0], total + 1).scatter(1, ids, weights)
        return reference.dense_experts(x, dense[:, :total], gate_up, down)
    return reference.grouped_experts(x, weights, ids, gate_up, down)


def all_experts(x: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Every row through every expert, weights [R, E] zero where not chosen; as ``experts``."""
    return reference.dense_experts(x, weights, gate_up, down)


def _open_shared(logits: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Router logits [R, E] and the opened gate [R, N] float32 of every slice."""
    count = logits.shape[1] - 1
    routing, gate = logits.split_with_sizes((count, 1), dim=1)
    compute = torch.promote_types(logits.dtype, torch.float32)
    return routing, gate.to(compute).sigmoid().expand(-1, total - count)
