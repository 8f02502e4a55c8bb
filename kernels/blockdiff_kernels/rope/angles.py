"""Cosines and sines of a round's positions as one Triton kernel.

Frequencies are a table made once: a last bit of a frequency is a visible angle at position 100000.
Knows nothing of heads.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import ceil_div, launch, power_of_two
from blockdiff_kernels.rope import reference, tiles


@triton.jit
def angles_kernel(
    positions, frequencies, cos, sin, R, H: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """cos, sin [R, H] float32 of positions [R] times frequencies [H].

    The product is rounded to float32 as the definition does; quarter turns are taken off in
    float64, so that no position needs the slow range reduction of a library's cosine.
    """
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_h = tl.arange(0, BH)
    m = (o_r < R)[:, None] & (o_h < H)[None, :]
    b_p = tl.load(positions + o_r, mask=o_r < R, other=0).to(tl.float32)
    b_f = tl.load(frequencies + o_h, mask=o_h < H, other=0.0)
    b_quarters = (b_p[:, None] * b_f[None, :]).to(tl.float64) * 0.6366197723675814
    b_whole = tl.floor(b_quarters + 0.5)
    # within an eighth of a turn
    b_x = ((b_quarters - b_whole) * 1.5707963267948966).to(tl.float32)
    b_y = b_x * b_x
    b_sin = 1 + b_y * (-1 / 6 + b_y * (1 / 120 + b_y * (-1 / 5040 + b_y * (1 / 362880))))
    b_sin *= b_x
    b_cos = 1 / 24 + b_y * (-1 / 720 + b_y * (1 / 40320 - b_y * (1 / 3628800)))
    b_cos = 1 + b_y * (-0.5 + b_y * b_cos)
    b_turn = b_whole.to(tl.int64)
    is_odd, is_past = (b_turn & 1) == 1, (b_turn & 2) == 2
    b_c, b_s = tl.where(is_odd, -b_sin, b_cos), tl.where(is_odd, b_cos, b_sin)
    o = o_r[:, None] * H + o_h[None, :]
    tl.store(cos + o, tl.where(is_past, -b_c, b_c), mask=m)
    tl.store(sin + o, tl.where(is_past, -b_s, b_s), mask=m)


@cache
def rope_table(rotary_dim: int, theta: float, device: torch.device) -> Tensor:
    """[rotary_dim / 2] float32."""
    return reference.rope_frequencies(rotary_dim, theta, device)


@cache
def proportional_table(head_dim: int, pairs: int, theta: float, device: torch.device) -> Tensor:
    """[head_dim / 2] float32."""
    return reference.proportional_frequencies(head_dim, pairs, theta, device)


def angles(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """positions [...] of integers, frequencies [H] -> cosines and sines [..., H] float32."""
    positions = positions.contiguous()
    rows, half = positions.numel(), len(frequencies)
    shape = (*positions.shape, half)
    cos, sin = (frequencies.new_empty(shape) for _ in range(2))
    tile = tiles.rows_of(half)
    arguments = {
        "positions": positions,
        "frequencies": frequencies,
        "cos": cos,
        "sin": sin,
        "R": rows,
        "H": half,
        "BR": tile.rows,
        "BH": power_of_two(half),
    }
    launch(angles_kernel, (ceil_div(rows, tile.rows),), arguments, tile.num_warps)
    return cos, sin
