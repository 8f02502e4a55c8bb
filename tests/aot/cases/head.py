"""Output heads of four families: greedy rows, drawn rows, canvases, insert and delete editing."""

import torch

from blockdiff_kernels.head import (
    Controls,
    Entropy,
    Filters,
    Peaks,
    RowDraws,
    Rules,
    expecting,
    triton,
)
from tests.aot.case import Case

SCORES, PROBABILITIES = ("score_kernel",), ("probability_kernel",)
PIVOTS = (*SCORES, "pivot_kernel")


def _head(
    rows: int,
    shape: tuple[int, int],
    way: str = "greedy",
    dtype: torch.dtype = torch.bfloat16,
    cap: float | None = None,
) -> None:
    hidden = torch.empty(rows, shape[1], dtype=dtype, device="meta")
    ints = hidden.new_empty((rows, 2), dtype=torch.int32)
    draws = RowDraws(hidden.new_empty(rows, dtype=torch.float32), ints)
    rules = {
        "greedy": Rules(ints),
        "drawn": Rules(ints, draws, Entropy.PLAIN),
        "kept": Rules(ints, draws._replace(filters=Filters(*_limits(hidden), 64, True))),
        "canvas": Rules(ints, draws, Entropy.SCALED),
        "edited": Rules(ints, draws, Entropy.NONE, Controls(5, 6, 7)),
    }[way]
    live = hidden.new_empty(1, dtype=torch.int32)
    triton.choose(hidden, hidden.new_empty(shape), cap, rules._replace(live=live))


def _limits(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = len(hidden)
    return hidden.new_empty(rows, dtype=torch.int32), hidden.new_empty(rows, dtype=torch.float32)


def _expect(rows: int, shape: tuple[int, int]) -> None:
    hidden = torch.empty(rows, shape[1], dtype=torch.bfloat16, device="meta")
    numbers = hidden.new_empty(rows, dtype=torch.float32)
    ints = hidden.new_empty((rows, 2), dtype=torch.int32)
    rules = Rules(ints, RowDraws(numbers, ints), Entropy.SCALED)
    expecting.expect(hidden, hidden.new_empty(shape), 30.0, rules, Peaks(numbers, numbers))


LARGE, LLADA, SDAR, GEMMA = (248320, 2048), (157184, 2048), (151936, 2048), (262144, 2816)
CASES = [
    Case(f"head/35b-greedy/L={rows}", lambda rows=rows: _head(rows, LARGE), SCORES)
    for rows in (16, 32, 128, 2048)
] + [
    Case("head/35b-drawn/L=512", lambda: _head(512, LARGE, "drawn"), SCORES),
    Case("head/35b-top-k-top-p/L=128", lambda: _head(128, LARGE, "kept"), PIVOTS),
    Case("head/35b-fp32/L=32", lambda: _head(32, LARGE, "drawn", torch.float32)),
    Case("head/llada2-edited/L=128", lambda: _head(128, LLADA, "edited"), SCORES),
    Case("head/sdar-greedy/L=128", lambda: _head(128, SDAR), SCORES),
    Case("head/diffusion-gemma-expected/L=256", lambda: _expect(256, GEMMA), PROBABILITIES),
    Case("head/diffusion-gemma/L=512", lambda: _head(512, GEMMA, "canvas", cap=30.0), SCORES),
]
