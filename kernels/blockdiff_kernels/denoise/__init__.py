"""What a preview makes of the blocks it decides: which tokens are accepted, what that writes.

Of the open places, ``accept`` takes those whose measure is best: at least ``minimum``, and more
where the measure lies within ``threshold``. Every block has a rule of its own:

low confidence   the most confident; all whose confidence is above the threshold
sequential       the first ones; no threshold
entropy bounded  those of lowest entropy; all while the entropies up to theirs sum to less
editing          besides, decided places with another token whose confidence is above a limit

An editing block is settled once a preview changes nothing, or its extra previews are used up.

``renew`` is for canvases that start as random tokens: places of lowest entropy take the tokens
drawn for them while the entropies before theirs sum to at most ``bound``, the others fresh random
ones. A canvas is finished, and takes its most probable tokens, when these have been the same for
``stability`` steps before and the mean entropy lies below ``confidence``, or with its last step.
"""

from torch import Tensor

from blockdiff_kernels.denoise import reference
from blockdiff_kernels.denoise.blocks import (
    ENTROPY_BOUNDED,
    LOW_CONFIDENCE,
    SEQUENTIAL,
    Blocks,
    Preview,
    Updated,
    unpack,
)
from blockdiff_kernels.denoise.canvases import Canvases, Progress, Step
from blockdiff_kernels.implementation import TRITON, choose

__all__ = [
    "ENTROPY_BOUNDED",
    "LOW_CONFIDENCE",
    "SEQUENTIAL",
    "Blocks",
    "Canvases",
    "Preview",
    "Progress",
    "Step",
    "Updated",
    "accept",
    "renew",
    "unpack",
]


def accept(blocks: Blocks, preview: Preview) -> Tensor:
    """The blocks after ``preview``, [G, 3 B + 1] int32 for ``unpack``, so that one copy fetches it.

    A log probability that is not a number is accepted first, so that its request fails at once.
    """
    if choose("denoise", blocks.canvas.device) is TRITON:
        from blockdiff_kernels.denoise import triton

        return triton.accept(blocks, preview)
    return reference.accept(blocks, preview)


def renew(canvases: Canvases, progress: Progress, step: Step) -> Tensor:
    """The canvases after ``step``, as ``accept`` gives blocks; ``progress`` is changed in place.

    Places that are open have another step before them.
    """
    if choose("denoise", canvases.canvas.device) is TRITON:
        from blockdiff_kernels.denoise import renewing

        return renewing.renew(canvases, progress, step)
    return reference.renew(canvases, progress, step)
