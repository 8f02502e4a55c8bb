"""Accepting tokens as a Triton kernel: one program a block, places ranked by comparing all pairs.

Knows nothing of slots or requests.
"""

import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.denoise import blocks as data
from blockdiff_kernels.denoise import tiles
from blockdiff_kernels.denoise.blocks import Blocks, Preview
from blockdiff_kernels.launch import launch, power_of_two

SEQUENTIAL = tl.constexpr(data.SEQUENTIAL)
ENTROPY_BOUNDED = tl.constexpr(data.ENTROPY_BOUNDED)
LAST = tl.constexpr(float("inf"))


@triton.jit
def load_row(log_probs, entropy, is_open, rows, i_g, o_b, B, rule):
    """Of places of a block: row, log probability, entropy, whether to decide, measure."""
    m_b = o_b < B
    b_row = tl.load(rows + i_g * B + o_b, mask=m_b, other=-1)
    b_open = tl.load(is_open + i_g * B + o_b, mask=m_b, other=0) != 0
    b_log = tl.load(log_probs + b_row, mask=b_row >= 0, other=0.0)
    b_decides = b_open & (b_row >= 0)
    is_nan = b_log != b_log
    b_entropy = tl.zeros_like(b_log)
    if entropy is not None:
        b_entropy = tl.load(entropy + b_row, mask=b_row >= 0, other=0.0)
        b_entropy = tl.where(is_nan, -LAST, b_entropy)
    b_sure = tl.where(is_nan, LAST, tl.exp(b_log))
    b_measure = tl.where(rule == SEQUENTIAL, o_b.to(tl.float32), -b_sure)
    b_measure = tl.where(rule == ENTROPY_BOUNDED, b_entropy, b_measure)
    return b_row, b_open, b_log, b_entropy, b_sure, tl.where(b_decides, b_measure, LAST)


@triton.jit
def accept_kernel(
    tokens, log_probs, entropy, canvas, before, is_open, rows, algorithm, minimum, threshold,
    is_editing, editing_threshold, post_steps, max_post_steps, packed,
    B, BB: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """Rows [L] and blocks [G, B], [G] -> packed [G, 3 B + 1]."""
    i_g = tl.program_id(0).to(tl.int64)
    o_b = tl.arange(0, BB)
    m_b = o_b < B
    rule, limit = tl.load(algorithm + i_g), tl.load(threshold + i_g)
    b_row, b_open, b_log, b_entropy, b_sure, b_measure = load_row(
        log_probs, entropy, is_open, rows, i_g, o_b, B, rule
    )
    m_open = b_open & (b_row >= 0)
    # how many places come before each, and the sum of their entropies
    b_rank = tl.zeros([BB], tl.int32)
    b_sum = b_entropy.to(tl.float64)
    for i_j in range(0, BB, BJ):
        o_j = i_j + tl.arange(0, BJ)
        _, _, _, b_other, _, b_key = load_row(log_probs, entropy, is_open, rows, i_g, o_j, B, rule)
        is_less = b_key[None, :] < b_measure[:, None]
        is_left = (b_key[None, :] == b_measure[:, None]) & (o_j[None, :] < o_b[:, None])
        is_before = is_less | is_left
        b_rank += tl.sum(is_before.to(tl.int32), 1)
        if entropy is not None:
            b_sum += tl.sum(tl.where(is_before, b_other[None, :], 0.0).to(tl.float64), 1)
    is_within = tl.where(rule == ENTROPY_BOUNDED, b_sum.to(tl.float32) < limit, b_sure > limit)
    count = tl.sum((is_within & m_open & (rule != SEQUENTIAL)).to(tl.int32), 0)
    count = tl.maximum(count, tl.load(minimum + i_g))
    b_taken = m_open & (b_rank < count)

    b_token = tl.load(tokens + b_row, mask=b_row >= 0, other=0).to(tl.int32)
    b_canvas = tl.load(canvas + i_g * B + o_b, mask=m_b, other=0)
    b_before = tl.load(before + i_g * B + o_b, mask=m_b, other=0.0)
    edits = tl.load(is_editing + i_g) != 0
    m_edit = (b_row >= 0) & (b_open == 0) & (b_token != b_canvas)
    b_taken = b_taken | (m_edit & edits & (b_sure > tl.load(editing_threshold + i_g)))
    b_left = b_open & (b_taken == 0)
    was_full = tl.sum(b_open.to(tl.int32), 0) == 0
    is_full = tl.sum(b_left.to(tl.int32), 0) == 0
    is_confirmed = was_full & (tl.sum(b_taken.to(tl.int32), 0) == 0)
    steps = tl.load(post_steps + i_g) + is_full.to(tl.int32)
    is_over = steps > tl.load(max_post_steps + i_g)
    is_settled = is_confirmed | is_over | (edits == 0)

    p_out = packed + i_g * (3 * B + 1) + o_b
    b_bits = tl.where(b_taken, b_log, b_before).to(tl.int32, bitcast=True)
    tl.store(p_out, tl.where(b_taken, b_token, b_canvas), mask=m_b)
    tl.store(p_out + B, b_bits, mask=m_b)
    tl.store(p_out + 2 * B, b_left.to(tl.int32), mask=m_b)
    tl.store(packed + i_g * (3 * B + 1) + 3 * B, is_settled.to(tl.int32))


def accept(blocks: Blocks, preview: Preview) -> Tensor:
    """See the package docstring."""
    count, width = blocks.canvas.shape
    packed = blocks.canvas.new_empty((count, 3 * width + 1))
    tile = tiles.block_tile(power_of_two(width))
    arguments = {
        **preview._asdict(),
        **blocks._asdict(),
        "log_probs": preview.log_probs,
        "before": blocks.log_probs,
        "packed": packed,
        "B": width,
        "BB": tile.places,
        "BJ": tile.others,
    }
    launch(accept_kernel, (count,), arguments, tile.num_warps)
    return packed
