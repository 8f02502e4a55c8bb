"""The embedding that rows of scaled logits expect, from hidden rows: logits a part at a time.

e = scale * sum_v softmax(l / T)_v W_v over the tokens that are not banned. Knows nothing of steps.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.head import tiles
from blockdiff_kernels.head.parts import NEVER, ban, finite_or_zero, tile_of_logits
from blockdiff_kernels.head.rules import Peaks, Rules
from blockdiff_kernels.head.scoring import COLDEST
from blockdiff_kernels.head.weighing import Sums
from blockdiff_kernels.launch import capability, ceil_div, launch

# Probabilities that exist at one time: rows times tokens of a part.
TILE = 1 << 24


@triton.jit
def probability_kernel(
    hidden, weight, live, banned, temperature, best, total, out,
    L, V, W, first, part, cap,
    H: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out [L, part]: probabilities of the tokens from ``first`` on; zero beyond the vocabulary."""
    i_t, i_v = tl.program_id(0), tl.program_id(1)
    if live is not None:  # noqa: SIM102
        if i_t * BT >= tl.load(live):
            return
    o_t, o_v = i_t * BT + tl.arange(0, BT), first + i_v * BV + tl.arange(0, BV)
    m_t = o_t < L
    b_l = tile_of_logits(hidden, weight, o_t, o_v, L, V, cap, H, BT, BV, BK)
    b_l = ban(b_l, banned, o_t, o_v, L, W)
    b_best = finite_or_zero(tl.load(best + o_t, mask=m_t, other=0.0))
    b_t = tl.maximum(tl.load(temperature + o_t, mask=m_t, other=1.0), COLDEST)
    b_p = tl.exp((b_l - b_best[None, :]) / b_t[None, :])
    b_p = b_p / tl.load(total + o_t, mask=m_t, other=1.0)[None, :]
    p_out = out + o_t.to(tl.int64)[None, :] * part + (o_v - first)[:, None]
    m = m_t[None, :] & (o_v < first + part)[:, None]
    tl.store(p_out, tl.where(b_l == NEVER, 0.0, b_p).to(out.dtype.element_ty), mask=m)


def expect(hidden: Tensor, weight: Tensor, cap: float | None, rules: Rules, peaks: Peaks) -> Tensor:
    """See the package docstring."""
    assert rules.draws is not None, "there is no temperature"
    rows, (vocabulary, width) = hidden.shape[0], weight.shape
    tile = tiles.score_tile(rows, weight.element_size(), False, capability(hidden))
    part = _part(rows, vocabulary, tile.vocabulary)
    probabilities = hidden.new_empty((rows, part), dtype=weight.dtype)
    arguments: dict[str, Any] = {
        "hidden": hidden.contiguous(),
        "weight": weight,
        "live": rules.live,
        "banned": rules.banned.contiguous(),
        "temperature": rules.draws.temperature,
        **peaks._asdict(),
        "out": probabilities,
        "L": rows,
        "V": vocabulary,
        "W": rules.banned.shape[1],
        "part": part,
        "cap": float(cap or 0.0),
        "H": width,
        "BT": tile.rows,
        "BV": tile.vocabulary,
        "BK": tile.hidden,
    }
    grid = (ceil_div(rows, tile.rows), part // tile.vocabulary)
    expected = Sums.begin(rows, weight)
    for first in range(0, vocabulary, part):
        arguments["first"] = first
        launch(probability_kernel, grid, arguments, tile.num_warps, tile.num_stages)
        expected.add(probabilities, first, rules.live)
    return expected.finish()


def _part(rows: int, vocabulary: int, tile: int) -> int:
    """Tokens of a part, a multiple of ``tile``."""
    tokens = min(TILE // max(rows, 1), vocabulary)
    return max(ceil_div(tokens, tile), 1) * tile
