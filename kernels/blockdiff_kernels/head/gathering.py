"""Drawing among the best tokens only, by looking them up: top-k, and top-p of what it keeps.

The k best tokens lie in the k parts of the vocabulary whose best tokens are best. Logits of these
parts alone are computed again, kept, and cut, first to k tokens, then to the probability among
these. Equal logits: the lowest ids. Knows nothing of bans' reasons.
"""

import triton
import triton.language as tl

from blockdiff_kernels.head.parts import NEVER, ban, gumbel
from blockdiff_kernels.head.rules import MOST_LISTED
from blockdiff_kernels.head.scoring import BEST, COLDEST

MOST = tl.constexpr(MOST_LISTED)
TINY = tl.constexpr(1e-37)
# Beyond all keys of float32, below and above.
LOWEST, HIGHEST = tl.constexpr(-(2**31) - 1), tl.constexpr(2**31 - 1)


@triton.jit
def takes_part(temperature, top_k, i_t):
    """Whether a row is drawn from so few tokens."""
    k = tl.load(top_k + i_t)
    return (tl.load(temperature + i_t) > 0) & (k > 0) & (k <= MOST)


@triton.jit
def pick_kernel(
    numbers, live, temperature, top_k, picked, L, P, K: tl.constexpr, BP: tl.constexpr
):  # fmt: skip
    """picked [L, K]: numbers of the top_k parts with the best tokens; -1 after them."""
    i_t = tl.program_id(0).to(tl.int64)
    if live is not None:  # noqa: SIM102
        if i_t >= tl.load(live):
            return
    if takes_part(temperature, top_k, i_t) == 0:
        return
    o_p = tl.arange(0, BP)
    step = L.to(tl.int64) * P
    b_best = tl.load(numbers + BEST * step + i_t * P + o_p, mask=o_p < P, other=NEVER)
    k = tl.load(top_k + i_t)
    for i_k in range(0, K):
        best, i_p = tl.max(b_best, 0, return_indices=True, return_indices_tie_break_left=True)
        is_one = (best > NEVER) & (i_k < k)
        tl.store(picked + i_t * K + i_k, tl.where(is_one, i_p, -1))
        b_best = tl.where(o_p == i_p, NEVER, b_best)


@triton.jit
def gather_kernel(
    hidden, weight, live, banned, temperature, top_k, picked, scores,
    L, V, W, cap,
    H: tl.constexpr, K: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """scores [L, K, BV]: logits of the tokens of picked parts, -inf where there are none."""
    i_t, i_k = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if live is not None:  # noqa: SIM102
        if i_t >= tl.load(live):
            return
    if takes_part(temperature, top_k, i_t) == 0:
        return
    i_v = tl.load(picked + i_t * K + i_k)
    o_b, o_k = tl.arange(0, BV), tl.arange(0, BK)
    p_out = scores + (i_t * K + i_k) * BV + o_b
    if i_v < 0:
        tl.store(p_out, tl.full([BV], NEVER, tl.float32))
        return
    o_v = i_v * BV + o_b
    p_w = weight + tl.minimum(o_v, V - 1).to(tl.int64)[:, None] * H + o_k[None, :]
    b_sum = tl.zeros([BV, BK], tl.float32)
    for i_h in range(0, H, BK):
        m_k = o_k + i_h < H
        b_w = tl.load(p_w + i_h, mask=m_k[None, :], other=0.0).to(tl.float32)
        b_x = tl.load(hidden + i_t * H + i_h + o_k, mask=m_k, other=0.0).to(tl.float32)
        b_sum += b_w * b_x[None, :]
    b_l = tl.sum(b_sum, 1)
    if cap > 0:
        b_l = cap - 2.0 * cap / (tl.exp(b_l * (2.0 / cap)) + 1.0)
    b_l = tl.where(o_v < V, b_l, NEVER)
    o_t = i_t.to(tl.int32) + tl.zeros([1], tl.int32)
    b_l = tl.reshape(ban(b_l[:, None], banned, o_t, o_v, L, W), [BV])
    tl.store(p_out, b_l)


@triton.jit
def keep_before(b_key, b_id, b_w, limit, V):
    """Flags of the tokens before which, by key and then id, weights sum to less than ``limit``."""
    # the least key above which they do
    low, high = tl.full([], LOWEST, tl.int64), tl.full([], HIGHEST, tl.int64)
    for _ in range(0, 33):
        middle = (low + high) >> 1
        total = tl.sum(tl.where(b_key > middle.to(tl.int32), b_w, 0.0), 0)
        is_less = (total < limit) & (high - low > 1)
        high = tl.where(is_less, middle, high)
        low = tl.where(is_less | (high - low <= 1), low, middle)
    cut = high.to(tl.int32)
    above = tl.sum(tl.where(b_key > cut, b_w, 0.0), 0)
    # and among equals the last id
    first, end = tl.full([], 0, tl.int32), V + 1
    for _ in range(0, 31):
        middle_id = (first + end) // 2
        is_earlier = (b_key == cut) & (b_id < middle_id)
        is_less = above + tl.sum(tl.where(is_earlier, b_w, 0.0), 0) < limit
        is_open = end - first > 1
        end = tl.where(is_open & (is_less == 0), middle_id, end)
        first = tl.where(is_open & is_less, middle_id, first)
    return (b_key > cut) | ((b_key == cut) & (b_id <= first))


@triton.jit
def select_kernel(
    scores, picked, live, temperature, top_k, top_p, keys, log_total, token, log_probs,
    L, V, K: tl.constexpr, BV: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Draws from scores [L, K, BV]: token, log_probs [L], in place."""
    i_t = tl.program_id(0).to(tl.int64)
    if live is not None:  # noqa: SIM102
        if i_t >= tl.load(live):
            return
    if takes_part(temperature, top_k, i_t) == 0:
        return
    o_n = tl.arange(0, BN)
    b_l = tl.load(scores + i_t * K * BV + o_n)
    b_id = tl.load(picked + i_t * K + o_n // BV) * BV + o_n % BV
    t = tl.maximum(tl.load(temperature + i_t), COLDEST)
    # no negative zero, whose key is another
    b_z = b_l / t + 0.0
    b_bits = b_z.to(tl.int32, bitcast=True)
    b_key = tl.where(b_bits < 0, b_bits ^ 0x7FFFFFFF, b_bits)
    b_one = tl.where(b_l == NEVER, 0.0, 1.0)
    b_keep = keep_before(b_key, b_id, b_one, tl.load(top_k + i_t).to(tl.float32), V)
    b_e = tl.where(b_keep & (b_l > NEVER), tl.exp(b_z - tl.max(b_z, 0)), 0.0)
    p = tl.load(top_p + i_t)
    limit = tl.where(p < 1.0, tl.maximum(p * tl.sum(b_e, 0), TINY), -NEVER)
    b_keep = b_keep & keep_before(b_key, b_id, b_e, limit, V) & (b_l > NEVER)
    o_t = i_t.to(tl.int32) + tl.zeros([1], tl.int32)
    b_g = tl.reshape(gumbel(keys, o_t, b_id, L), [BN])
    _, i_n = tl.max(tl.where(b_keep, b_z + b_g, NEVER), 0, return_indices=True)
    score = tl.sum(tl.where(o_n == i_n, b_l, 0.0), 0)
    tl.store(token + i_t, tl.sum(tl.where(o_n == i_n, b_id, 0), 0).to(tl.int64))
    tl.store(log_probs + i_t, score - tl.load(log_total + i_t))
