"""Plain torch definitions of routing and of sparse experts. Knows nothing of layers."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff_kernels.pointwise import FAST, Pointwise


def route(logits: Tensor, top_k: int, is_normalised: bool = True) -> tuple[Tensor, Tensor]:
    """See the package docstring. Softmax of the chosen logits is the renormalised softmax."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    chosen, ids = logits.topk(top_k, dim=-1)
    if is_normalised:
        return chosen.softmax(-1), ids
    return (chosen - logits.logsumexp(-1, keepdim=True)).exp(), ids


def route_groups(
    logits: Tensor,
    bias: Tensor,
    top_k: int,
    groups: int,
    kept_groups: int,
    scale: float,
    pointwise: Pointwise = FAST,
) -> tuple[Tensor, Tensor]:
    """See the package docstring."""
    scores = pointwise.sigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32)))
    # [R, groups, experts of a group]
    choice = (scores + bias.to(scores.dtype)).unflatten(1, (groups, -1))
    group_scores = choice.topk(2, dim=-1).values.sum(-1)
    kept = group_scores.topk(kept_groups, dim=-1).indices
    is_dropped = torch.ones_like(group_scores, dtype=torch.bool).scatter(1, kept, False)
    choice = choice.masked_fill(is_dropped.unsqueeze(-1), float("-inf")).flatten(1)
    ids = choice.topk(top_k, dim=-1).indices
    weights = scores.gather(1, ids)
    if top_k > 1:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * scale, ids


def with_shared(
    weights: Tensor,
    ids: Tensor,
    gate: Tensor,
    num_experts: int,
    total: int,
    pointwise: Pointwise = FAST,
) -> tuple[Tensor, Tensor]:
    """See the package."""
    always = torch.arange(num_experts, total, device=ids.device).expand(ids.shape[0], -1)
    opened = pointwise.sigmoid(gate.to(weights.dtype)).expand(-1, total - num_experts)
    return torch.cat((weights, opened), dim=1), torch.cat((ids, always), dim=1)


def route_scaled(logits: Tensor, expert_scale: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """See the package docstring."""
    weights, ids = route(logits, top_k)
    return weights * expert_scale.to(weights.dtype)[ids], ids


def gated(
    gate: Tensor, up: Tensor, activation: str = "silu", pointwise: Pointwise = FAST
) -> Tensor:
    """See the package docstring."""
    assert activation in ("silu", "gelu_tanh"), activation
    return (pointwise.silu if activation == "silu" else pointwise.gelu_tanh)(gate) * up


def dense_weights(logits: Tensor, top_k: int) -> Tensor:
    """Routing as [R, E] float32 with zeros for experts that are not chosen."""
    compute = torch.promote_types(logits.dtype, torch.float32)
    logits = logits.to(compute)
    chosen, ids = logits.topk(top_k, dim=-1)
    return torch.full_like(logits, float("-inf")).scatter(1, ids, chosen).softmax(-1)


def weigh_with_shared(routing: Tensor, gate: Tensor, top_k: int, total: int) -> Tensor:
    """See the package."""
    weights = dense_weights(routing, top_k)
    opened = gate.to(weights.dtype).sigmoid().expand(-1, total - routing.shape[1])
    return torch.cat((weights, opened), dim=1)


def dense_experts(
    x: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, activation: str = "silu"
) -> Tensor:
    """Every row through every expert, unchosen ones weighted by zero: two matrix products.

    weights [R, E], zero where not chosen; the rest as in ``grouped_experts``.
    """
    experts, inner, hidden = down.shape
    gate, up = functional.linear(x, gate_up.view(-1, hidden)).view(-1, experts, 2, inner).unbind(2)
    act = gated(gate, up, activation) * weights.to(x.dtype).unsqueeze(-1)
    return act.view(-1, experts * inner) @ down.view(-1, hidden)


def grouped_experts(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    gate_up: Tensor,
    down: Tensor,
    activation: str = "silu",
) -> Tensor:
    """Rows sorted by expert, one matrix product pair per expert that has rows.

    x [R, H]; weights [R, k]; ids [R, k] int64, E: none; gate_up [E, 2I, H]; down [E, I, H].
    """

    def apply(expert: int, part: Tensor) -> Tensor:
        gate, up = functional.linear(part, gate_up[expert]).chunk(2, dim=-1)
        return gated(gate, up, activation) @ down[expert]

    return experts_one_by_one(x, weights, ids, down.shape[0], apply)


def experts_one_by_one(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    experts: int,
    apply: Callable[[int, Tensor], Tensor],
) -> Tensor:
    """See the package."""
    outputs, order = _apply_sorted(x, ids, experts, apply)
    scaled = outputs * weights.flatten().index_select(0, order).unsqueeze(-1).to(x.dtype)
    return torch.zeros_like(x).index_add(0, order // ids.shape[1], scaled)


def experts_by_rank(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    experts: int,
    apply: Callable[[int, Tensor], Tensor],
) -> Tensor:
    """See the package."""
    outputs, order = _apply_sorted(x, ids, experts, apply)
    places = x.new_zeros(ids.numel(), x.shape[1]).index_copy_(0, order, outputs)
    scaled = places.view(*ids.shape, -1) * weights.unsqueeze(-1).to(x.dtype)
    first, *others = scaled.unbind(1)
    for other in others:
        first = first + other
    return first


def _apply_sorted(
    x: Tensor, ids: Tensor, experts: int, apply: Callable[[int, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Outputs [N, H] of all rows' experts, expert by expert, and the places [N] of their ids."""
    counts = torch.bincount(ids.flatten(), minlength=experts)[:experts].tolist()
    order = ids.flatten().argsort(stable=True)[: sum(counts)]
    parts = [x[:0]]
    for expert, part in enumerate(
        x.index_select(0, order // ids.shape[1]).split_with_sizes(counts)
    ):
        if part.shape[0]:
            parts.append(apply(expert, part))
    return torch.cat(parts), order
