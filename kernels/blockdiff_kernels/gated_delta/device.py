"""Steps that the kernels of gated delta layers share. Knows nothing of how rows are mixed."""

import triton
import triton.language as tl

NORM_EPS = tl.constexpr(1e-6)


@triton.jit
def unit_rows(b_x):
    """x rsqrt(sum x^2 + 1e-6) of each row."""
    return b_x * tl.rsqrt(tl.sum(b_x * b_x, 1) + NORM_EPS)[:, None]


@triton.jit
def softplus(b_x):
    """log(1 + exp(x))."""
    return tl.maximum(b_x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(b_x)))


@triton.jit
def load_gates(p_b, a_log, dt_bias, i_h, o_t, T, stride, Hv):
    """Log decay and write strength of value head ``i_h`` at rows ``o_t``, zero from ``T`` on.

    p_b: column of its b in the segment's first row; that of its a is Hv further.
    """
    m_t = o_t < T
    b_b = tl.load(p_b + o_t * stride, mask=m_t, other=0.0).to(tl.float32)
    b_a = tl.load(p_b + Hv + o_t * stride, mask=m_t, other=0.0).to(tl.float32)
    b_rate = tl.exp(tl.load(a_log + i_h).to(tl.float32))
    b_a += tl.load(dt_bias + i_h).to(tl.float32)
    b_g = tl.where(m_t, -b_rate * softplus(b_a), 0.0)
    return b_g, tl.where(m_t, tl.sigmoid(b_b), 0.0)


@triton.jit
def decay_between(b_later, b_earlier, m):
    """exp(later_i - earlier_j) where ``m``, else zero: elsewhere it would overflow."""
    b_d = b_later[:, None] - b_earlier[None, :]
    return tl.where(m, tl.exp(tl.where(m, b_d, 0.0)), 0.0)
