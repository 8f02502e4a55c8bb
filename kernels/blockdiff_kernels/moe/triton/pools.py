"""The experts that each block of rows may use. One program decides for one block.

Knows nothing of which of them rows choose.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.coreset import RowBlocks
from blockdiff_kernels.launch import launch, power_of_two
from blockdiff_kernels.moe.plan import RouterPlan
from blockdiff_kernels.moe.rules import MassPool, Sigmoid
from blockdiff_kernels.moe.triton.choice import best_of

ROWS = 8
FROM_SIGMOID: tl.constexpr = tl.constexpr(0)
FROM_SOFTMAX: tl.constexpr = tl.constexpr(1)
BY_MASS: tl.constexpr = tl.constexpr(2)


@triton.jit
def sort_key(b_s):
    """int64 [BE] in the order of float32 scores, the lower number first in ties; distinct."""
    b_bits = tl.where(b_s == 0, 0.0, b_s).to(tl.int32, bitcast=True)
    b_key = tl.where(b_bits < 0, b_bits ^ 0x7FFFFFFF, b_bits).to(tl.int64)
    return b_key


@triton.jit
def own_mass(b_p, o_e, m_e, E: tl.constexpr, TOP_K: tl.constexpr):
    """int64 [BT, BE]: probabilities of the row's own top k in units of 2^-40, at least 1, else 0.

    Adding and taking away 2^52 rounds to the nearest whole number.
    """
    b_units = b_p.to(tl.float64) * 1099511627776.0
    b_units = (b_units + 4503599627370496.0) - 4503599627370496.0
    b_units = tl.maximum(b_units.to(tl.int64), 1)
    b_s = tl.where(m_e[None, :], b_p, float("-inf"))
    b_mass = tl.zeros_like(b_units)
    for _ in range(0, TOP_K):
        is_it = (o_e[None, :] == best_of(b_s, o_e, E)[:, None]) & m_e[None, :]
        b_mass = tl.where(is_it, b_units, b_mass)
        b_s = tl.where(is_it, float("-inf"), b_s)
    return b_mass


@triton.jit
def pool_kernel(
    logits, bias, numbers, allowed, R, N, SHARE: tl.constexpr, RULE: tl.constexpr,
    E: tl.constexpr, CAPACITY: tl.constexpr, BR: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """allowed [blocks, E] int8 from logits [R, N]; a block's rows should lie close.

    By mass, CAPACITY is the top k of a row and the least size of a pool.
    """
    i_b = tl.program_id(0)
    o_r = tl.arange(0, BR)
    is_own = tl.load(numbers + o_r, mask=o_r < R, other=-1) == i_b
    first = tl.min(tl.where(is_own, o_r, R), 0)
    last = tl.max(tl.where(is_own, o_r + 1, 0), 0)
    o_e = tl.arange(0, BE)
    m_e = o_e < E
    o_t = tl.arange(0, BT)
    b_best = tl.full([BE], float("-inf"), dtype=tl.float32)
    b_mass = tl.zeros([BE], dtype=tl.int64)
    for i_r in range(first, last, BT):
        is_row = tl.load(numbers + i_r + o_t, mask=i_r + o_t < last, other=-1) == i_b
        o_l = (i_r + o_t).to(tl.int64)[:, None] * N + o_e[None, :]
        m = is_row[:, None] & m_e[None, :]
        b_l = tl.load(logits + o_l, mask=m, other=0.0)
        if RULE == FROM_SIGMOID:
            b_p = tl.sigmoid(b_l) + tl.load(bias + o_e, mask=m_e, other=0.0).to(tl.float32)[None, :]
        else:
            b_l = tl.where(m_e[None, :], b_l, float("-inf"))
            b_p = tl.exp(b_l - tl.max(b_l, 1)[:, None])
            b_p = b_p / tl.sum(b_p, 1)[:, None]
        if RULE == BY_MASS:
            b_own = own_mass(b_p, o_e, m_e, E, CAPACITY)
            b_mass += tl.sum(tl.where(is_row[:, None], b_own, 0), 0)
        else:
            b_best = tl.maximum(b_best, tl.max(tl.where(m, b_p, float("-inf")), 0))
    # the number is a part of the key, so that keys differ and the lower number is the larger key
    b_key = b_mass
    if RULE != BY_MASS:
        b_key = sort_key(b_best)
    b_key = tl.where(m_e, b_key * BE + (BE - 1 - o_e), -(1 << 62))
    b_sorted = tl.sort(b_key, descending=True)
    size = CAPACITY
    if RULE == BY_MASS:
        b_falling = tl.where(m_e, b_sorted // BE, 0)
        wanted = tl.sum(b_falling, 0).to(tl.float64) * tl.full([], SHARE, tl.float64)
        b_before = (tl.cumsum(b_falling, 0) - b_falling).to(tl.float64)
        is_in = (b_before < wanted) & (b_falling > 0) | (o_e < CAPACITY)
        size = tl.sum((is_in & m_e).to(tl.int32), 0)
    least = tl.sum(tl.where(o_e == size - 1, b_sorted, 0), 0)
    is_allowed = (b_key >= least) | (size >= E)
    tl.store(allowed + i_b.to(tl.int64) * E + o_e, is_allowed.to(tl.int8), mask=m_e)


def pool(logits: Tensor, plan: RouterPlan, blocks: RowBlocks) -> Tensor:
    """Which experts each block may use, [blocks, E] int8, from logits [R, E (+ 1)]."""
    rule, chosen_from = plan.rule, plan.rule.pool
    assert chosen_from is not None, "the rule has pools"
    by_mass = isinstance(chosen_from, MassPool)
    allowed = logits.new_empty(blocks.count, plan.experts, dtype=torch.int8)
    source = FROM_SIGMOID if isinstance(rule, Sigmoid) else BY_MASS if by_mass else FROM_SOFTMAX
    arguments = {
        "logits": logits,
        "bias": rule.bias if isinstance(rule, Sigmoid) else None,
        "numbers": blocks.numbers,
        "allowed": allowed,
        "R": logits.shape[0],
        "N": logits.shape[1],
        "SHARE": chosen_from.share if isinstance(chosen_from, MassPool) else 1.0,
        "RULE": source.value,
        "E": plan.experts,
        "CAPACITY": rule.top_k if isinstance(chosen_from, MassPool) else chosen_from.capacity,
        "BR": power_of_two(logits.shape[0]),
        "BT": ROWS,
        "BE": power_of_two(plan.experts),
    }
    launch(pool_kernel, (blocks.count,), arguments, num_warps=4)
    return allowed
