"""First of two kernels of the output head: logits of a part of the vocabulary, and what counts.

Of a tile's logits only maxima, sums and ids leave the program. Knows nothing of the whole row.
"""

import triton
import triton.language as tl

from blockdiff_kernels.head.drawing import LEAST_TEMPERATURE
from blockdiff_kernels.head.parts import (
    NEVER,
    ban,
    best_of,
    finite_or_zero,
    gumbel,
    tile_of_logits,
)

# Lines of the numbers that are handed on; those of what is not asked for come last.
BEST, TOP, TOTAL, NOISY, DRAWN, SPREAD, SCALED_TOTAL, FINAL, MASK = (
    tl.constexpr(line) for line in range(9)
)
# of the ids
BEST_ID, DRAWN_ID, FINAL_ID = (tl.constexpr(line) for line in range(3))
COLDEST = tl.constexpr(LEAST_TEMPERATURE)


@triton.jit
def score_kernel(
    hidden, weight, live, banned, temperature, keys, numbers, ids,
    L, V, P, W, cap, mask_id, delete_id, split_id,
    H: tl.constexpr, DRAWS: tl.constexpr, ENTROPY: tl.constexpr, CONTROLS: tl.constexpr,
    BT: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """hidden [L, H], weight [V, H], banned [L, W] -> numbers [lines, L, P], ids [lines, L, P].

    P parts of the vocabulary; programs of all rows and one part follow each other, so that its
    weights come from memory once.
    """
    i_t, i_v = tl.program_id(0), tl.program_id(1)
    if live is not None:  # noqa: SIM102, two conditions for the compiler
        if i_t * BT >= tl.load(live):
            return
    o_t, o_v = i_t * BT + tl.arange(0, BT), i_v * BV + tl.arange(0, BV)
    m_t = o_t < L
    step = L.to(tl.int64) * P
    p_n = numbers + o_t.to(tl.int64) * P + i_v
    p_i = ids + o_t.to(tl.int64) * P + i_v
    b_l = tile_of_logits(hidden, weight, o_t, o_v, L, V, cap, H, BT, BV, BK)

    b_top = tl.max(b_l, 0)
    b_d = b_l - finite_or_zero(b_top)[None, :]
    b_e = tl.exp(b_d)
    tl.store(p_n + TOP * step, b_top, mask=m_t)
    tl.store(p_n + TOTAL * step, tl.sum(b_e, 0), mask=m_t)
    if ENTROPY == 1:
        b_d = tl.where(b_l == NEVER, 0.0, b_d * b_e)
        tl.store(p_n + SPREAD * step, tl.sum(b_d, 0), mask=m_t)
    if CONTROLS:
        b_m = tl.sum(tl.where((o_v == mask_id)[:, None], b_l, 0.0), 0)
        tl.store(p_n + MASK * step, b_m, mask=m_t)

    b_l = ban(b_l, banned, o_t, o_v, L, W)
    b_best, b_id = best_of(b_l, o_v, V)
    tl.store(p_n + BEST * step, b_best, mask=m_t)
    tl.store(p_i + BEST_ID * step, b_id, mask=m_t)
    if DRAWS:
        b_t = tl.maximum(tl.load(temperature + o_t, mask=m_t, other=1.0), COLDEST)
        if ENTROPY == 2:
            b_d = (b_l - finite_or_zero(b_best)[None, :]) / b_t[None, :]
            b_e = tl.exp(b_d)
            b_d = tl.where(b_l == NEVER, 0.0, b_d * b_e)
            tl.store(p_n + SCALED_TOTAL * step, tl.sum(b_e, 0), mask=m_t)
            tl.store(p_n + SPREAD * step, tl.sum(b_d, 0), mask=m_t)
        b_z = b_l / b_t[None, :] + gumbel(keys, o_t, o_v, L)
        b_noisy, b_id = best_of(b_z, o_v, V)
        tl.store(p_n + NOISY * step, b_noisy, mask=m_t)
        tl.store(p_i + DRAWN_ID * step, b_id, mask=m_t)
        b_z = tl.where(o_v[:, None] == b_id[None, :], b_l, 0.0)
        tl.store(p_n + DRAWN * step, tl.sum(b_z, 0), mask=m_t)
    if CONTROLS:
        is_control = (o_v == delete_id) | (o_v == split_id)
        b_best, b_id = best_of(tl.where(is_control[:, None], NEVER, b_l), o_v, V)
        tl.store(p_n + FINAL * step, b_best, mask=m_t)
        tl.store(p_i + FINAL_ID * step, b_id, mask=m_t)
