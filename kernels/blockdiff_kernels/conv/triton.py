"""Convolutions over flat rows as steps of other kernels. Knows nothing of what those compute."""

import triton
import triton.language as tl


@triton.jit
def convolve(
    p_x, p_tail, weight, right_weight, i_t, o_c, m_c, T, stride, C,
    W: tl.constexpr, R: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """silu of the convolution of channels ``o_c`` at BT rows from ``i_t`` on, float32.

    p_x: the segment's first row; p_tail: its line [W - 1, C]; weight [C, W], right_weight [C, R].
    Rows from ``T`` on, and channels outside ``m_c``, are zero.
    """
    o_t = i_t + tl.arange(0, BT)
    b_y = tl.zeros([BT, o_c.shape[0]], tl.float32)
    # a branch, so that the tail's numbers need no registers where it is not read
    if i_t == 0:
        for j in range(W - 1):
            o_r = o_t + j
            b_w = tl.load(weight + o_c * W + j, mask=m_c, other=0.0).to(tl.float32)
            m_x = (o_r < W - 1)[:, None] & m_c[None, :]
            b_x = tl.load(p_tail + o_r[:, None] * C + o_c[None, :], mask=m_x, other=0.0)
            b_y += b_x.to(tl.float32) * b_w[None, :]
    # loops that stay loops: unrolled, all taps would be in flight and in registers
    for j in range(W):
        o_r = o_t - (W - 1) + j
        b_w = tl.load(weight + o_c * W + j, mask=m_c, other=0.0).to(tl.float32)
        m_x = ((o_r >= 0) & (o_r < T))[:, None] & m_c[None, :]
        b_x = tl.load(p_x + o_r[:, None] * stride + o_c[None, :], mask=m_x, other=0.0)
        b_y += b_x.to(tl.float32) * b_w[None, :]
    if right_weight is not None:
        for d in range(R):
            o_r = o_t + 1 + d
            b_w = tl.load(right_weight + o_c * R + d, mask=m_c, other=0.0).to(tl.float32)
            m_x = (o_r < T)[:, None] & m_c[None, :]
            b_x = tl.load(p_x + o_r[:, None] * stride + o_c[None, :], mask=m_x, other=0.0)
            b_y += b_x.to(tl.float32) * b_w[None, :]
    b_y = b_y * tl.sigmoid(b_y)
    return tl.where((o_t < T)[:, None], b_y, 0.0)


@triton.jit
def keep_tail(p_x, p_tail, p_copy, o_c, m_c, m_copy, T, stride, C, W: tl.constexpr):
    """Shift channels ``o_c`` of a segment's last rows into its line, and where ``m_copy`` into that
    of ``p_copy``."""
    # what is read of the old tail lies right of what is written
    for j in tl.static_range(W - 1):
        i_r = T - (W - 1) + j
        b_x = tl.load(p_x + i_r * stride + o_c, mask=m_c & (i_r >= 0), other=0.0)
        b_old = tl.load(p_tail + (i_r + W - 1) * C + o_c, mask=m_c & (i_r < 0), other=0.0)
        b_new = tl.where(i_r < 0, b_old, b_x.to(p_tail.dtype.element_ty))
        tl.store(p_tail + j * C + o_c, b_new, mask=m_c)
        tl.store(p_copy + j * C + o_c, b_new, mask=m_c & m_copy)
