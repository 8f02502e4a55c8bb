"""Updates of blocks of 4, 32 and 256 places."""

import torch

from blockdiff_kernels.denoise import Blocks, Canvases, Preview, Progress, Step, renewing, triton
from tests.aot.case import Case


def _accept(width: int, has_entropy: bool) -> None:
    grid = torch.empty(16, width, dtype=torch.int32, device="meta")
    line, wide = grid.new_empty(16), grid.new_empty((16, width), dtype=torch.float32)
    limits = wide.new_empty(16)
    blocks = Blocks(grid, wide, grid, grid, line, line, limits, line, limits, line, line)
    rows = wide.new_empty(16 * width)
    tokens = rows.new_empty(16 * width, dtype=torch.int64)
    triton.accept(blocks, Preview(tokens, rows, rows if has_entropy else None))


def _renew(width: int) -> None:
    grid = torch.empty(16, width, dtype=torch.int32, device="meta")
    line, limits = grid.new_empty(16), grid.new_empty(16, dtype=torch.float32)
    canvases = Canvases(grid, grid, grid, line, line, line, line, limits, limits)
    ids = grid.new_empty(16 * width, dtype=torch.int64)
    rows = ids.new_empty(16 * width, dtype=torch.float32)
    renewing.renew(canvases, Progress(grid, line), Step(ids, ids, rows, rows))


CASES = [
    Case("denoise/accept/B=4", lambda: _accept(4, False)),
    Case("denoise/accept/B=32", lambda: _accept(32, True)),
    Case("denoise/accept/B=256", lambda: _accept(256, True)),
    Case("denoise/renew/B=256", lambda: _renew(256)),
]
