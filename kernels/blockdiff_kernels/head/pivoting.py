"""Drawing among the best tokens only, by rejection: top-k or top-p without sorting or logits.

The kept tokens are the first ones in the order of logits (equal ones: of ids). The token of largest
logit plus noise is the draw if it is kept, which a pass over the vocabulary tells: how many tokens
come before it, and how probable they are together. If it is not, no later token is kept either, and
the same pass has found the next candidate, the largest among those before. Half of what is not kept
goes with every candidate, so that a few passes are enough. Knows nothing of bans' reasons.
"""

import triton
import triton.language as tl

from blockdiff_kernels.head.parts import (
    NEVER,
    ban,
    best_of,
    finite_or_zero,
    gumbel,
    tile_of_logits,
)
from blockdiff_kernels.head.scoring import COLDEST

COUNT, MASS, ALL, NOISY, LOGIT = (tl.constexpr(line) for line in range(5))
LINES = 5


@triton.jit
def pivot_kernel(
    hidden, weight, live, banned, temperature, keys, peak, token, score, done, numbers, ids,
    L, V, P, W, cap,
    H: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """What a part of the vocabulary says of the candidates token, score [L]: numbers [5, L, P]."""
    i_t, i_v = tl.program_id(0), tl.program_id(1)
    if live is not None:  # noqa: SIM102
        if i_t * BT >= tl.load(live):
            return
    o_t, o_v = i_t * BT + tl.arange(0, BT), i_v * BV + tl.arange(0, BV)
    m_t = o_t < L
    if live is not None:
        m_t = o_t < tl.minimum(L, tl.load(live))
    if tl.min(tl.load(done + o_t, mask=m_t, other=1), 0) == 1:
        return
    step = L.to(tl.int64) * P
    p_n = numbers + o_t.to(tl.int64) * P + i_v
    b_l = tile_of_logits(hidden, weight, o_t, o_v, L, V, cap, H, BT, BV, BK)
    b_l = ban(b_l, banned, o_t, o_v, L, W)
    b_t = tl.maximum(tl.load(temperature + o_t, mask=m_t, other=1.0), COLDEST)
    b_peak = finite_or_zero(tl.load(peak + o_t, mask=m_t, other=0.0))
    b_e = tl.exp((b_l - b_peak[None, :]) / b_t[None, :])
    b_score = tl.load(score + o_t, mask=m_t, other=0.0)
    b_token = tl.load(token + o_t, mask=m_t, other=0).to(tl.int32)
    is_tie = (b_l == b_score[None, :]) & (o_v[:, None] < b_token[None, :])
    # the candidate itself never comes before, however its logit was rounded
    is_before = ((b_l > b_score[None, :]) | is_tie) & (o_v[:, None] != b_token[None, :])
    tl.store(p_n + COUNT * step, tl.sum(is_before.to(tl.float32), 0), mask=m_t)
    tl.store(p_n + MASS * step, tl.sum(tl.where(is_before, b_e, 0.0), 0), mask=m_t)
    tl.store(p_n + ALL * step, tl.sum(b_e, 0), mask=m_t)
    b_z = b_l / b_t[None, :] + gumbel(keys, o_t, o_v, L)
    b_noisy, b_id = best_of(tl.where(is_before, b_z, NEVER), o_v, V)
    tl.store(p_n + NOISY * step, b_noisy, mask=m_t)
    tl.store(ids + o_t.to(tl.int64) * P + i_v, b_id, mask=m_t)
    b_z = tl.where(o_v[:, None] == b_id[None, :], b_l, 0.0)
    tl.store(p_n + LOGIT * step, tl.sum(b_z, 0), mask=m_t)


@triton.jit
def judge_kernel(
    numbers, ids, live, top_k, top_p, log_total, greedy, peak, token, score, done, log_probs,
    L, P, is_last, BP: tl.constexpr,
):  # fmt: skip
    """Takes the candidates that are kept, and the next ones for the others, in place.

    With the last pass, rows without an answer take their best token.
    """
    i_t = tl.program_id(0).to(tl.int64)
    if live is not None:  # noqa: SIM102
        if i_t >= tl.load(live):
            return
    if tl.load(done + i_t) != 0:
        return
    o_p = tl.arange(0, BP)
    m_p = o_p < P
    step = L.to(tl.int64) * P
    p_n = numbers + i_t * P + o_p
    count = tl.sum(tl.load(p_n + COUNT * step, mask=m_p, other=0.0), 0)
    mass = tl.sum(tl.load(p_n + MASS * step, mask=m_p, other=0.0), 0)
    total = tl.sum(tl.load(p_n + ALL * step, mask=m_p, other=0.0), 0)
    k, p = tl.load(top_k + i_t), tl.load(top_p + i_t)
    is_kept = (k <= 0) | (count < k.to(tl.float32))
    is_kept = is_kept & ((p >= 1.0) | (count == 0) | (mass < p * total))
    b_z = tl.load(p_n + NOISY * step, mask=m_p, other=NEVER)
    _, i_z = tl.max(b_z, 0, return_indices=True, return_indices_tie_break_left=True)
    following = tl.load(ids + i_t * P + i_z).to(tl.int64)
    own = tl.where(is_kept, tl.load(token + i_t), following)
    logit = tl.load(numbers + i_t * P + LOGIT * step + i_z)
    logit = tl.where(is_kept, tl.load(score + i_t), logit)
    gives_up = (is_kept == 0) & (is_last != 0)
    own = tl.where(gives_up, tl.load(greedy + i_t), own)
    logit = tl.where(gives_up, tl.load(peak + i_t), logit)
    tl.store(token + i_t, own)
    tl.store(score + i_t, logit)
    tl.store(log_probs + i_t, logit - tl.load(log_total + i_t))
    tl.store(done + i_t, is_kept.to(tl.int32))
