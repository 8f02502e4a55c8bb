"""What kernels of the output head have in common: a tile of logits, its bans and its noise.

A tile is [BV, BT]: tokens of the vocabulary down, rows across.
"""

import triton
import triton.language as tl

NEVER = tl.constexpr(float("-inf"))
UNIT = tl.constexpr(2.0**-32)
ALMOST_ONE = tl.constexpr(1.0 - 2.0**-24)


@triton.jit
def tile_of_logits(
    hidden, weight, o_t, o_v, L, V, cap,
    H: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """[BV, BT] float32, softly bounded where ``cap`` is above 0; -inf beyond the vocabulary."""
    o_k = tl.arange(0, BK)
    # rows and tokens beyond the end are read as the last ones
    p_w = weight + tl.minimum(o_v, V - 1).to(tl.int64)[:, None] * H + o_k[None, :]
    p_x = hidden + tl.minimum(o_t, L - 1).to(tl.int64)[None, :] * H + o_k[:, None]
    b_l = tl.zeros([BV, BT], tl.float32)
    for i_k in range(0, H, BK):
        if H % BK == 0:
            b_w = tl.load(p_w + i_k)
            b_x = tl.load(p_x + i_k)
        else:
            m_k = o_k + i_k < H
            b_w = tl.load(p_w + i_k, mask=m_k[None, :], other=0.0)
            b_x = tl.load(p_x + i_k, mask=m_k[:, None], other=0.0)
        b_l = tl.dot(b_w, b_x, b_l, input_precision="ieee")
    if cap > 0:
        # tanh, whose exponential may be infinite
        b_l = cap - 2.0 * cap / (tl.exp(b_l * (2.0 / cap)) + 1.0)
    return tl.where((o_v < V)[:, None], b_l, NEVER)


@triton.jit
def ban(b_l, banned, o_t, o_v, L, W):
    """-inf at the W ids of each row that it may not choose."""
    for i_w in range(0, W):
        b_id = tl.load(banned + o_t.to(tl.int64) * W + i_w, mask=o_t < L, other=-1)
        b_l = tl.where(o_v[:, None] == b_id[None, :], NEVER, b_l)
    return b_l


@triton.jit
def mix(word):
    """The finaliser of murmur3, on uint32."""
    word ^= word >> 16
    word *= 0x85EBCA6B
    word ^= word >> 13
    word *= 0xC2B2AE35
    return word ^ (word >> 16)


@triton.jit
def gumbel(keys, o_t, o_v, L):
    """Standard Gumbel noise [BV, BT]: the words of ``noise``; logarithms round as they may."""
    m_t = o_t < L
    b_first = tl.load(keys + o_t.to(tl.int64) * 2, mask=m_t, other=0).to(tl.uint32)
    b_second = tl.load(keys + o_t.to(tl.int64) * 2 + 1, mask=m_t, other=0).to(tl.uint32)
    b_token = o_v.to(tl.uint32) * 0x9E3779B1
    b_word = mix(mix(b_token[:, None] ^ b_first[None, :]) ^ b_second[None, :])
    b_u = tl.minimum((b_word.to(tl.float32) + 0.5) * UNIT, ALMOST_ONE)
    # log1p(-u), which a plain logarithm of 1 - u would lose where u is small
    b_rest = 1.0 - b_u
    b_log = tl.where(b_rest == 1.0, -b_u, tl.log(b_rest) * (b_u / (1.0 - b_rest)))
    return -tl.log(-b_log)


@triton.jit
def best_of(b_l, o_v, V):
    """The largest number [BT] of each row and its id; equal ones: the lowest id."""
    b_best, b_i = tl.max(b_l, 0, return_indices=True, return_indices_tie_break_left=True)
    first = tl.min(o_v, 0)
    return b_best, tl.minimum(b_i + first, V - 1)


@triton.jit
def finite_or_zero(b_top):
    """What may be taken from numbers that are all -inf without making nan."""
    return tl.where(b_top == NEVER, 0.0, b_top)
