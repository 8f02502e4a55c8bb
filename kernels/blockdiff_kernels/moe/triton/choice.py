"""Each row's best experts by its scores, their weights, and how often each tile chose an expert.

Equal scores go to the lower expert number. Knows nothing of products.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.coreset import RowBlocks
from blockdiff_kernels.launch import ceil_div, launch, power_of_two
from blockdiff_kernels.moe import tiles
from blockdiff_kernels.moe.plan import RouterPlan
from blockdiff_kernels.moe.rules import Sigmoid, Softmax

SOFTMAX: tl.constexpr = tl.constexpr(0)
SOFTMAX_OF_ALL: tl.constexpr = tl.constexpr(1)
SIGMOID: tl.constexpr = tl.constexpr(2)


@triton.jit
def best_of(b_s, o_e, E):
    """Number [BT] of the highest score of b_s [BT, BE], the lowest in ties; of nan, the last."""
    is_best = b_s == tl.max(b_s, 1)[:, None]
    return tl.minimum(tl.min(tl.where(is_best, o_e[None, :], E), 1), E - 1)


@triton.jit
def keep_groups(b_s, GROUPS: tl.constexpr, KEPT: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr):
    """-inf for all but the groups of columns whose two best sum highest, the lower in ties."""
    o_m = tl.arange(0, BE // GROUPS)
    o_g = tl.arange(0, GROUPS)
    b_g = tl.reshape(b_s, [BT, GROUPS, BE // GROUPS])
    b_first = tl.max(b_g, 2)
    b_at = tl.min(tl.where(b_g == b_first[:, :, None], o_m[None, None, :], BE), 2)
    b_rest = tl.where(o_m[None, None, :] == b_at[:, :, None], float("-inf"), b_g)
    b_sum = b_first + tl.max(b_rest, 2)
    b_kept = tl.zeros([BT, GROUPS], dtype=tl.int32)
    for _ in range(0, KEPT):
        is_it = o_g[None, :] == best_of(b_sum, o_g, GROUPS)[:, None]
        b_kept = tl.where(is_it, 1, b_kept)
        b_sum = tl.where(is_it, float("-inf"), b_sum)
    return tl.reshape(tl.where((b_kept > 0)[:, :, None], b_g, float("-inf")), [BT, BE])


@triton.jit
def choice_kernel(
    logits, bias, expert_scale, allowed, numbers, count, weights, ids, histogram, R, N, scale,
    RULE: tl.constexpr, E: tl.constexpr, TOP_K: tl.constexpr, GROUPS: tl.constexpr,
    KEPT: tl.constexpr, SHARED: tl.constexpr, GATED: tl.constexpr, BT: tl.constexpr,
    BE: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """weights, ids [R, TOP_K + SHARED], histogram [tiles, E] of logits [R, N].

    Columns lie group by group, each of a power of two: column c is member c % of group c //.
    """
    i_t = tl.program_id(0)
    o_t = i_t * BT + tl.arange(0, BT)
    limit = R
    if count is not None:
        limit = tl.minimum(tl.load(count), R)
    is_row = o_t < limit
    o_c = tl.arange(0, BE)
    MEMBERS: tl.constexpr = BE // GROUPS
    o_e = (o_c // MEMBERS) * (E // GROUPS) + o_c % MEMBERS
    m_e = o_c % MEMBERS < E // GROUPS
    o_w = o_t.to(tl.int64)[:, None] * (TOP_K + SHARED)
    m = is_row[:, None] & m_e[None, :]
    b_l = tl.load(logits + o_t.to(tl.int64)[:, None] * N + o_e[None, :], mask=m, other=0.0)
    b_v = b_l
    if RULE == SIGMOID:
        b_v = tl.sigmoid(b_l)
        b_l = b_v + tl.load(bias + o_e, mask=m_e, other=0.0).to(tl.float32)[None, :]
    b_s = tl.where(m_e[None, :], b_l, float("-inf"))
    if allowed is not None:
        b_n = tl.load(numbers + o_t, mask=is_row, other=-1).to(tl.int64)
        o_a = tl.maximum(b_n, 0)[:, None] * E + o_e[None, :]
        m_a = (b_n >= 0)[:, None] & m_e[None, :]
        b_s = tl.where(tl.load(allowed + o_a, mask=m_a, other=1) > 0, b_s, float("-inf"))
    if KEPT < GROUPS:
        b_s = keep_groups(b_s, GROUPS, KEPT, BT, BE)
    o_k = tl.arange(0, BK)
    b_id = tl.full([BT, BK], E + SHARED, dtype=tl.int32)
    b_w = tl.full([BT, BK], float("-inf"), dtype=tl.float32)
    b_taken = tl.zeros([BT, BE], dtype=tl.int32)
    for i_k in range(0, TOP_K):
        b_best = best_of(b_s, o_e, E)
        is_it = (o_e[None, :] == b_best[:, None]) & m_e[None, :]
        b_value = tl.sum(tl.where(is_it, b_v, 0.0), 1)
        b_id = tl.where(o_k[None, :] == i_k, b_best[:, None], b_id)
        b_w = tl.where(o_k[None, :] == i_k, b_value[:, None], b_w)
        b_taken = tl.where(is_it & is_row[:, None], 1, b_taken)
        b_s = tl.where(is_it, float("-inf"), b_s)
    if RULE == SIGMOID:
        b_w = tl.where(o_k[None, :] < TOP_K, b_w, 0.0)
        if TOP_K > 1:
            b_w = b_w / (tl.sum(b_w, 1)[:, None] + 1e-20)
        b_w *= scale
    elif RULE == SOFTMAX_OF_ALL:
        b_all = tl.where(m_e[None, :], b_v, float("-inf"))
        b_top = tl.max(b_all, 1)[:, None]
        b_w = tl.exp(b_w - b_top) / tl.sum(tl.exp(b_all - b_top), 1)[:, None]
    else:
        b_w = tl.exp(b_w - tl.max(b_w, 1)[:, None])
        b_w = b_w / tl.sum(b_w, 1)[:, None]
    m_k = (o_t < R)[:, None] & (o_k < TOP_K)[None, :]
    if expert_scale is not None:
        b_w *= tl.load(expert_scale + b_id, mask=m_k, other=0.0).to(tl.float32)
    b_id = tl.where(is_row[:, None], b_id, E + SHARED)
    tl.store(ids + o_w + o_k[None, :], b_id, mask=m_k)
    tl.store(weights + o_w + o_k[None, :], tl.where(is_row[:, None], b_w, 0.0), mask=m_k)
    tl.store(histogram + i_t * E + o_e, tl.sum(b_taken, 0), mask=m_e)
    if SHARED > 0:
        b_gate = tl.full([BT], 1.0, dtype=tl.float32)
        if GATED:
            b_gate = tl.sigmoid(tl.load(logits + o_t.to(tl.int64) * N + E, mask=is_row, other=0.0))
        o_n = tl.arange(0, BN)
        m_n = (o_t < R)[:, None] & (o_n < SHARED)[None, :]
        b_id = tl.where(is_row[:, None], E + o_n[None, :], E + SHARED)
        b_gate = tl.where(is_row, b_gate, 0.0)[:, None] + tl.zeros([BT, BN], dtype=tl.float32)
        tl.store(ids + o_w + TOP_K + o_n[None, :], b_id, mask=m_n)
        tl.store(weights + o_w + TOP_K + o_n[None, :], b_gate, mask=m_n)


def choose(
    logits: Tensor,
    plan: RouterPlan,
    blocks: RowBlocks | None,
    allowed: Tensor | None,
    count: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights and ids [R, chosen] and the histogram [tiles, E] int32 of routed experts.

    logits [R, E (+ 1)] float32; allowed [blocks, E] int8 of ``blocks``, or None.
    """
    rule, rows = plan.rule, logits.shape[0]
    weights = logits.new_empty(rows, plan.chosen)
    ids = logits.new_empty(rows, plan.chosen, dtype=torch.int32)
    groups, kept = (rule.groups, rule.kept_groups) if isinstance(rule, Sigmoid) else (1, 1)
    assert plan.experts % groups == 0 and groups & (groups - 1) == 0, "equal groups, 2^n of them"
    tile = tiles.choice_tile(rows, plan.experts)
    histogram = logits.new_empty(ceil_div(rows, tile.rows), plan.experts, dtype=torch.int32)
    arguments = {
        "logits": logits,
        "bias": rule.bias if isinstance(rule, Sigmoid) else None,
        "expert_scale": rule.expert_scale if isinstance(rule, Softmax) else None,
        "allowed": allowed,
        "numbers": None if blocks is None or allowed is None else blocks.numbers,
        "count": count,
        "weights": weights,
        "ids": ids,
        "histogram": histogram,
        "R": rows,
        "N": logits.shape[1],
        "scale": rule.scale if isinstance(rule, Sigmoid) else 1.0,
        "RULE": _rule(plan),
        "E": plan.experts,
        "TOP_K": rule.top_k,
        "GROUPS": groups,
        "KEPT": kept,
        "SHARED": plan.shared,
        "GATED": plan.is_gated,
        "BT": tile.rows,
        "BE": groups * power_of_two(plan.experts // groups),
        "BK": power_of_two(rule.top_k),
        "BN": power_of_two(max(plan.shared, 1)),
    }
    launch(choice_kernel, (histogram.shape[0],), arguments, tile.num_warps)
    return weights, ids, histogram


def _rule(plan: RouterPlan) -> int:
    rule = plan.rule
    if isinstance(rule, Sigmoid):
        return int(SIGMOID.value)
    is_whole = rule.pool is None and not rule.is_normalised and rule.expert_scale is None
    return int((SOFTMAX_OF_ALL if is_whole else SOFTMAX).value)
