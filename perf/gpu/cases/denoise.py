"""Accepting tokens: integers and comparisons, so that every bit must be right."""

from collections.abc import Callable, Sequence

import torch

from blockdiff_kernels.denoise import Blocks, Preview, accept
from blockdiff_kernels.denoise.cost import cost
from perf.gpu.case import Maker, OpCase, Work
from perf.gpu.sizes import Sizes


def cases(sizes: Sizes, rows: Sequence[int]) -> list[OpCase]:
    """Blocks all of whose places are open."""
    return [
        OpCase("denoise", "accept", count, _accept(count, sizes), cost(count), limit=0.0)
        for count in rows
    ]


def _accept(rows: int, sizes: Sizes) -> Callable[[Maker], Work]:
    def make(maker: Maker) -> Work:
        groups, width = rows // sizes.block, sizes.block
        tokens = maker.numbers(rows, below=sizes.vocabulary)
        log_probs = -maker.normal(rows, dtype=torch.float32).abs()
        grid = torch.zeros(groups, width, dtype=torch.int32, device=maker.device)
        line, limits = grid.new_zeros(groups), log_probs.new_full((groups,), -0.5)
        own = torch.arange(rows, device=maker.device, dtype=torch.int32).view(groups, width)
        blocks = Blocks(
            canvas=grid,
            log_probs=torch.zeros_like(grid, dtype=torch.float32),
            is_open=grid + 1,
            rows=own,
            algorithm=line,
            minimum=line + 1,
            threshold=limits,
            is_editing=line,
            editing_threshold=limits,
            post_steps=line,
            max_post_steps=line,
        )
        preview = Preview(tokens, log_probs)
        return Work(lambda: [accept(blocks, preview)])

    return make
