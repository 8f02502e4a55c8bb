"""Steps of canvases of random tokens as a Triton kernel: one program a canvas.

Knows nothing of slots' requests or of where random tokens come from.
"""

import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.denoise import tiles
from blockdiff_kernels.denoise.canvases import Canvases, Progress, Step
from blockdiff_kernels.launch import launch, power_of_two

LAST = tl.constexpr(float("inf"))


@triton.jit
def load_entropy(entropy, is_given, i_g, o_b, B):
    """Of places of a canvas: whether they have their token, entropy, entropy to rank by."""
    m_b = o_b < B
    b_given = tl.load(is_given + i_g * B + o_b, mask=m_b, other=1) != 0
    b_entropy = tl.load(entropy + i_g * B + o_b, mask=m_b, other=0.0)
    return b_given, tl.where(b_given, 0.0, b_entropy), tl.where(b_given, LAST, b_entropy)


@triton.jit
def renew_kernel(
    best, drawn, log_probs, entropy, canvas, fresh, is_given, slots, step, steps, stability, bound,
    confidence, last, repeats, packed,
    B, BB: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """Places [G, B] and canvases [G] -> packed [G, 3 B + 1]; last [slots, B], repeats [slots]."""
    i_g = tl.program_id(0).to(tl.int64)
    o_b = tl.arange(0, BB)
    m_b = o_b < B
    p_b = i_g * B + o_b
    b_given, b_entropy, b_key = load_entropy(entropy, is_given, i_g, o_b, B)
    b_before = tl.zeros([BB], tl.float64)
    for i_j in range(0, BB, BJ):
        o_j = i_j + tl.arange(0, BJ)
        _, b_other, b_otherkey = load_entropy(entropy, is_given, i_g, o_j, B)
        is_less = b_otherkey[None, :] < b_key[:, None]
        is_left = (b_otherkey[None, :] == b_key[:, None]) & (o_j[None, :] < o_b[:, None])
        b_sums = tl.where(is_less | is_left, b_other[None, :], 0.0)
        b_before += tl.sum(b_sums.to(tl.float64), 1)
    m_taken = (b_before.to(tl.float32) <= tl.load(bound + i_g)) & (b_given == 0)

    b_canvas = tl.load(canvas + p_b, mask=m_b, other=0)
    b_best = tl.load(best + p_b, mask=m_b, other=0).to(tl.int32)
    b_best = tl.where(b_given, b_canvas, b_best)
    i_s = tl.load(slots + i_g).to(tl.int64)
    number = tl.load(step + i_g)
    b_last = tl.load(last + i_s * B + o_b, mask=m_b, other=0)
    changed = tl.sum(((b_best != b_last) & m_b).to(tl.int32), 0)
    again = tl.where((changed == 0) & (number > 0), tl.load(repeats + i_s) + 1, 0)
    tl.store(last + i_s * B + o_b, b_best, mask=m_b)
    tl.store(repeats + i_s, again)

    count = tl.sum((b_given == 0).to(tl.int32), 0)
    mean = tl.sum(b_entropy, 0) / tl.maximum(count, 1).to(tl.float32)
    is_sure = (again >= tl.load(stability + i_g)) & (mean < tl.load(confidence + i_g))
    is_over = (number + 1 >= tl.load(steps + i_g)) | (count == 0)
    is_done = is_sure | is_over
    b_drawn = tl.load(drawn + p_b, mask=m_b, other=0).to(tl.int32)
    b_fresh = tl.load(fresh + p_b, mask=m_b, other=0)
    b_next = tl.where(is_done | b_given, b_best, tl.where(m_taken, b_drawn, b_fresh))
    b_log = tl.where(b_given, 0.0, tl.load(log_probs + p_b, mask=m_b, other=0.0))
    b_open = (b_given == 0) & (is_done == 0)
    p_out = packed + i_g * (3 * B + 1) + o_b
    tl.store(p_out, b_next, mask=m_b)
    tl.store(p_out + B, b_log.to(tl.int32, bitcast=True), mask=m_b)
    tl.store(p_out + 2 * B, b_open.to(tl.int32), mask=m_b)
    tl.store(packed + i_g * (3 * B + 1) + 3 * B, 1)


def renew(canvases: Canvases, progress: Progress, step: Step) -> Tensor:
    """See the package docstring."""
    count, width = canvases.canvas.shape
    packed = canvases.canvas.new_empty((count, 3 * width + 1))
    tile = tiles.block_tile(power_of_two(width))
    arguments = {
        **canvases._asdict(),
        **step._asdict(),
        "last": progress.best,
        "repeats": progress.repeats,
        "packed": packed,
        "B": width,
        "BB": tile.places,
        "BJ": tile.others,
    }
    launch(renew_kernel, (count,), arguments, tile.num_warps)
    return packed
