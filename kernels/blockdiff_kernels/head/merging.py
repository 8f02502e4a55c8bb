"""Second of two kernels of the output head: what all parts of the vocabulary say of a row.

One program per row and one fixed order of sums, so that a row's result is always the same. Knows
nothing of logits.
"""

import triton
import triton.language as tl

from blockdiff_kernels.head.parts import NEVER, finite_or_zero
from blockdiff_kernels.head.scoring import (
    BEST,
    BEST_ID,
    COLDEST,
    DRAWN,
    DRAWN_ID,
    FINAL,
    FINAL_ID,
    MASK,
    NOISY,
    SCALED_TOTAL,
    SPREAD,
    TOP,
    TOTAL,
)

# Lines of what rows chose: ids and log probabilities.
CHOSEN, GREEDY, OTHER, LAST = (tl.constexpr(line) for line in range(4))
# After log probabilities: entropies, ``Peaks``, logits of the chosen, logarithms of the sums.
ENTROPIES, PEAK, PEAK_TOTAL, SCORE, LOG_TOTAL = (tl.constexpr(line) for line in range(4, 9))


@triton.jit
def merge_kernel(
    numbers, ids, live, temperature, tokens, log_probs,
    L, P, mask_id,
    DRAWS: tl.constexpr, ENTROPY: tl.constexpr, CONTROLS: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """numbers, ids [lines, L, P] -> tokens [lines, L] int64, log_probs [lines, L] float32."""
    i_t = tl.program_id(0).to(tl.int64)
    if live is not None:  # noqa: SIM102
        if i_t >= tl.load(live):
            return
    o_p = tl.arange(0, BP)
    m_p = o_p < P
    step = L.to(tl.int64) * P
    p_n, p_i = numbers + i_t * P + o_p, ids + i_t * P

    b_top = tl.load(p_n + TOP * step, mask=m_p, other=NEVER)
    b_total = tl.load(p_n + TOTAL * step, mask=m_p, other=0.0)
    top = tl.max(b_top, 0)
    b_d = b_top - finite_or_zero(top)
    b_e = tl.exp(b_d)
    total = tl.sum(b_total * b_e, 0)
    log_total = finite_or_zero(top) + tl.log(total)
    if ENTROPY == 1:
        b_s = tl.load(p_n + SPREAD * step, mask=m_p, other=0.0)
        b_s = tl.where(b_top == NEVER, 0.0, b_e * (b_s + b_total * b_d))
        tl.store(log_probs + ENTROPIES * L + i_t, tl.log(total) - tl.sum(b_s, 0) / total)

    b_best = tl.load(p_n + BEST * step, mask=m_p, other=NEVER)
    best, i_p = tl.max(b_best, 0, return_indices=True, return_indices_tie_break_left=True)
    token = tl.load(p_i + BEST_ID * step + i_p).to(tl.int64)
    tl.store(tokens + GREEDY * L + i_t, token)
    tl.store(log_probs + GREEDY * L + i_t, best - log_total)
    score = best
    if DRAWS:
        t = tl.load(temperature + i_t)
        b_z = tl.load(p_n + NOISY * step, mask=m_p, other=NEVER)
        noisy, i_z = tl.max(b_z, 0, return_indices=True, return_indices_tie_break_left=True)
        drawn = tl.load(p_i + DRAWN_ID * step + i_z).to(tl.int64)
        drawn_score = tl.load(numbers + i_t * P + DRAWN * step + i_z)
        token = tl.where(t > 0, drawn, token)
        score = tl.where(t > 0, drawn_score, best)
        if ENTROPY == 2:
            b_d = (b_best - finite_or_zero(best)) / tl.maximum(t, COLDEST)
            b_e = tl.exp(b_d)
            b_total = tl.load(p_n + SCALED_TOTAL * step, mask=m_p, other=0.0)
            b_s = tl.load(p_n + SPREAD * step, mask=m_p, other=0.0)
            b_s = tl.where(b_best == NEVER, 0.0, b_e * (b_s + b_total * b_d))
            total = tl.sum(b_total * b_e, 0)
            tl.store(log_probs + PEAK_TOTAL * L + i_t, total)
            tl.store(log_probs + ENTROPIES * L + i_t, tl.log(total) - tl.sum(b_s, 0) / total)
    tl.store(tokens + CHOSEN * L + i_t, token)
    tl.store(log_probs + PEAK * L + i_t, best)
    tl.store(log_probs + SCORE * L + i_t, score)
    tl.store(log_probs + LOG_TOTAL * L + i_t, log_total)
    tl.store(log_probs + CHOSEN * L + i_t, score - log_total)
    if CONTROLS:
        mask = tl.sum(tl.load(p_n + MASK * step, mask=m_p, other=0.0), 0)
        is_mask = (mask > score) | ((mask == score) & (mask_id < token))
        tl.store(tokens + OTHER * L + i_t, tl.where(is_mask, mask_id.to(tl.int64), token))
        tl.store(log_probs + OTHER * L + i_t, tl.where(is_mask, mask, score) - log_total)
        b_f = tl.load(p_n + FINAL * step, mask=m_p, other=NEVER)
        final, i_f = tl.max(b_f, 0, return_indices=True, return_indices_tie_break_left=True)
        tl.store(tokens + LAST * L + i_t, tl.load(p_i + FINAL_ID * step + i_f).to(tl.int64))
        tl.store(log_probs + LAST * L + i_t, final - log_total)
