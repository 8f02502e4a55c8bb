"""Plain torch definitions of accepting tokens. Knows nothing of slots or requests."""

import torch
from torch import Tensor

from blockdiff_kernels.denoise.blocks import (
    ENTROPY_BOUNDED,
    SEQUENTIAL,
    Blocks,
    Preview,
    Updated,
    pack,
)
from blockdiff_kernels.denoise.canvases import Canvases, Progress, Step

_LAST = float("inf")


def accept(blocks: Blocks, preview: Preview) -> Tensor:
    """See the package docstring."""
    has_row, was_open = blocks.rows >= 0, blocks.is_open != 0
    tokens, log_probs = _spread(preview.tokens, blocks), _spread(preview.log_probs, blocks)
    confidence = log_probs.exp().masked_fill(log_probs.isnan(), _LAST)
    entropy = torch.zeros_like(log_probs)
    if preview.entropy is not None:
        entropy = _spread(preview.entropy, blocks).masked_fill(log_probs.isnan(), -_LAST)
    accepted = _best(blocks, confidence, entropy, has_row & was_open)
    is_editing = blocks.is_editing[:, None] != 0
    is_other = (tokens != blocks.canvas) & (confidence > blocks.editing_threshold[:, None])
    accepted |= is_editing & has_row & ~was_open & is_other
    is_open = was_open & ~accepted
    is_confirmed = ~was_open.any(dim=1) & ~accepted.any(dim=1)
    post_steps = blocks.post_steps + ~is_open.any(dim=1)
    is_settled = is_confirmed | (post_steps > blocks.max_post_steps) | ~is_editing[:, 0]
    return pack(
        Updated(
            canvas=torch.where(accepted, tokens, blocks.canvas),
            log_probs=torch.where(accepted, log_probs, blocks.log_probs),
            is_open=is_open,
            is_settled=is_settled,
        )
    )


def _spread(rows: Tensor, blocks: Blocks) -> Tensor:
    """Values of the rows [L] at their places [G, B]; zero elsewhere."""
    at_places = torch.cat((rows, rows.new_zeros(1)))[blocks.rows.long()]
    return torch.where(blocks.rows >= 0, at_places, torch.zeros_like(at_places))


def _best(blocks: Blocks, confidence: Tensor, entropy: Tensor, is_open: Tensor) -> Tensor:
    """Places [G, B] whose measure is best, equal ones from the left."""
    rule, limit = blocks.algorithm[:, None], blocks.threshold[:, None]
    places = torch.arange(is_open.shape[1], device=is_open.device).expand(is_open.shape).float()
    measure = torch.where(rule == SEQUENTIAL, places, -confidence)
    measure = torch.where(rule == ENTROPY_BOUNDED, entropy, measure)
    order = measure.masked_fill(~is_open, _LAST).argsort(dim=1, stable=True)
    rank = order.argsort(dim=1)
    lowest = entropy.masked_fill(~is_open, _LAST).sort(dim=1).values
    bounded = (lowest.double().cumsum(dim=1).float() < limit).sum(dim=1)
    count = ((confidence > limit) & is_open).sum(dim=1)
    count = torch.where(blocks.algorithm == ENTROPY_BOUNDED, bounded, count)
    count = count.masked_fill(blocks.algorithm == SEQUENTIAL, 0)
    return is_open & (rank < torch.maximum(count, blocks.minimum)[:, None])


def renew(canvases: Canvases, progress: Progress, step: Step) -> Tensor:
    """See the package docstring."""
    is_given, shape = canvases.is_given != 0, canvases.canvas.shape
    best, drawn, log_probs, entropy = (line.view(shape) for line in step)
    best = torch.where(is_given, canvases.canvas, best.int())
    last, slots = progress.best[canvases.slots.long()], canvases.slots.long()
    is_same = (best == last).all(dim=1) & (canvases.step > 0)
    repeats = torch.where(is_same, progress.repeats[slots] + 1, 0).int()
    progress.best[slots], progress.repeats[slots] = best, repeats
    count, taking_part = (~is_given).sum(dim=1), entropy.masked_fill(is_given, 0)
    mean = taking_part.sum(dim=1) / count.clamp_min(1)
    is_sure = (repeats >= canvases.stability) & (mean < canvases.confidence)
    is_over = (canvases.step + 1 >= canvases.steps) | (count == 0)
    is_finished = (is_sure | is_over)[:, None]
    order = entropy.masked_fill(is_given, _LAST).argsort(dim=1, stable=True)
    lowest = taking_part.gather(1, order)
    is_accepted = lowest.cumsum(dim=1) - lowest <= canvases.bound[:, None]
    is_accepted = torch.zeros_like(is_given).scatter_(1, order, is_accepted)
    renewed = torch.where(is_accepted, drawn.int(), canvases.fresh)
    return pack(
        Updated(
            canvas=torch.where(is_finished | is_given, best, renewed),
            log_probs=log_probs.masked_fill(is_given, 0),
            is_open=~is_finished & ~is_given,
            is_settled=torch.ones_like(count),
        )
    )
