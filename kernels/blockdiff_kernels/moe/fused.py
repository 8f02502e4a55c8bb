"""Norm, router, experts and their sum in two calls, as kernels or by their definitions.

rows = norm(x);  logits = scale router (rows or another norm(x));  weights, ids = rule(logits)
y = residual + sum over a row's entries of weight * down (a(gate rows) * up rows)

Knows nothing of layers; the order of entries and how kernels share the work is the kernels' own.
"""

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff_kernels.coreset import RowBlocks
from blockdiff_kernels.implementation import TRITON, choose
from blockdiff_kernels.moe import reference
from blockdiff_kernels.moe.plan import ExpertGroups, RouterPlan, Routing
from blockdiff_kernels.moe.stacks import ExpertWeights
from blockdiff_kernels.norm import norm
from blockdiff_kernels.projection.sources import Normed, Plain


def choose_experts(
    source: Plain | Normed,
    plan: RouterPlan,
    blocks: RowBlocks | None = None,
    count: Tensor | None = None,
    hits: Tensor | None = None,
) -> Routing:
    """The experts of every row of ``source``, weighed and grouped; in ties the lower number.

    ``blocks`` for rules with pools. ``count`` [1] int32: rows from there
    on are padding, which chooses nothing. ``hits`` [E] int64 gets the choices of routed experts
    added, those of other ranks included. Waits for nothing.
    """
    if choose("moe", source.x.device) is TRITON:
        from blockdiff_kernels.moe import triton

        return triton.choose_experts(source, plan, blocks, count, hits)
    return define_routing(source, plan, blocks, count, hits)


def apply_experts(routing: Routing, stack: ExpertWeights, residual: Tensor | None = None) -> Tensor:
    """y [R, H] in the dtype of the rows: the weighted sum of each row's experts in ``stack``.

    residual [R, H] is added to it. Weights of experts without entries are not read. A row's result
    does not depend on the others; padding gets only the residual.
    """
    if choose("moe", routing.rows.device) is TRITON:
        from blockdiff_kernels.moe import triton

        return triton.apply_experts(routing, stack, residual)
    return define_experts(routing, stack, residual)


def define_routing(
    source: Plain | Normed,
    plan: RouterPlan,
    blocks: RowBlocks | None = None,
    count: Tensor | None = None,
    hits: Tensor | None = None,
) -> Routing:
    """``choose_experts`` in torch's own operations."""
    x, own = source.rows(), plan.norm
    scored = x if own is None else norm(source.x, own.weight, own.eps, own.kind)
    logits = functional.linear(scored.to(plan.weight.dtype), plan.weight) * plan.logit_scale
    weights, ids = plan.rule.choose(logits[:, : plan.experts], blocks)
    is_row = torch.ones(len(x), 1, dtype=torch.bool, device=x.device)
    if count is not None:
        is_row = torch.arange(len(x), device=x.device).unsqueeze(1) < count
    if hits is not None:
        chosen = ids[is_row.expand_as(ids)]
        hits.index_add_(0, chosen, torch.ones_like(chosen))
    gate = x.new_full((len(x), 1), float("inf"))
    if plan.is_gated:
        gate = logits[:, plan.experts :]
    weights, ids = reference.with_shared(weights, ids, gate, plan.experts, plan.nobody)
    ids = torch.where(is_row, ids, plan.nobody)
    groups = define_groups(ids, plan)
    return Routing(x, torch.where(is_row, weights, 0), ids.to(torch.int32), groups)


def define_groups(ids: Tensor, plan: RouterPlan) -> ExpertGroups:
    """The grouping of ids [R, chosen] int64, in tiles of one entry."""
    first, stop = plan.here
    is_here = (ids >= first) & (ids < stop) | (ids >= plan.experts) & (ids < plan.nobody)
    local = torch.where(ids < plan.experts, ids - first, ids - plan.experts + stop - first)
    local = torch.where(is_here, local, plan.stacked).flatten()
    order = local.argsort(stable=True)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=ids.device))
    counts = torch.bincount(local, minlength=plan.stacked + 1)[: plan.stacked]
    offsets = functional.pad(counts.cumsum(0), (1, 0))
    entries = torch.arange(len(order), device=ids.device)
    stops = torch.where(entries < offsets[-1], entries + 1, 0)
    return ExpertGroups(
        rows=(order // ids.shape[1]).to(torch.int32),
        inverse=torch.where(is_here, places.view_as(ids), -1).to(torch.int32),
        tiles=torch.stack((local[order], entries, stops)).to(torch.int32),
        offsets=offsets.to(torch.int32),
        distinct=(counts > 0).sum(0, keepdim=True).to(torch.int32),
        tile_rows=1,
    )


def define_experts(routing: Routing, stack: ExpertWeights, residual: Tensor | None) -> Tensor:
    """``apply_experts`` in torch's own operations, expert by expert."""
    x, weights, groups = routing.rows, routing.weights, routing.groups
    offsets = groups.offsets.tolist()
    outputs = x.new_zeros(len(groups.rows) + 1, x.shape[1])
    for expert, (start, stop) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        if start < stop:
            outputs[start:stop] = stack.apply(expert, x[groups.rows[start:stop].long()])
    # place -1 is the line of zeros
    own = outputs[groups.inverse.long()] * weights.unsqueeze(-1).to(x.dtype)
    y = own.sum(1)
    return y if residual is None else residual + y
