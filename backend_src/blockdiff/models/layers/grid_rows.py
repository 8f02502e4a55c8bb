"""Where the rows of a writing group lie on the grid of positions that recurrent states keep to.

A line keeps the state at the last point of the grid and the rows since; a segment goes on from
there. Knows nothing of layers.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff.cache import kept_rows
from blockdiff_kernels.gated_delta import GRID_ROWS


class GridRows(NamedTuple):
    """Index maps of G segments of T rows, over the N = kept + T rows that were kept or are new.

    W rows, whole chunks of the grid, begin at the grid's last point before each context.
    """

    window: Tensor  # [G * (taps - 1 + W)] of G * N rows: what W convolved rows need
    mask: Tensor  # [G, W] bool, False after a segment's last row
    whole: Tensor  # [G] int64 chunks that are complete
    own: Tensor  # [G * T] of G * W rows: the segment's own
    kept: Tensor  # [G * kept] of G * N rows: what the line keeps


def make_grid_rows(contexts: Tensor, lengths: Tensor, width: int, taps: int) -> GridRows:
    """Index maps for ``contexts`` and ``lengths`` [G] int64, of segments padded to ``width``."""
    kept = kept_rows(taps)
    total, window = kept + width, -(-(GRID_ROWS - 1 + width) // GRID_ROWS) * GRID_ROWS

    def steps(count: int) -> Tensor:
        return torch.arange(count, device=contexts.device)

    starts = steps(len(contexts)).unsqueeze(1)
    since, lengths = (contexts % GRID_ROWS).unsqueeze(1), lengths.unsqueeze(1)
    first = kept - since - (taps - 1)
    read = (first + steps(taps - 1 + window)).clamp_max(total - 1)
    return GridRows(
        window=(starts * total + read).flatten(),
        mask=steps(window) < since + lengths,
        whole=((since + lengths) // GRID_ROWS).squeeze(1),
        own=(starts * window + since + steps(width)).flatten(),
        kept=(starts * total + lengths + steps(kept)).flatten(),
    )
