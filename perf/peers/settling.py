"""Which masked positions of a block a step settles, as the public loops do it.

Knows logits and canvases; knows no model.
"""

import torch
from torch import Tensor

from perf.peers.protocol import Job


def settle(job: Job, step: int, logits: Tensor, canvas: Tensor, masked: Tensor) -> None:
    """Write into ``canvas`` [N, B] what step ``step`` settles and clear it in ``masked`` [N, B].

    logits [N, B, V]. Everything above the threshold or, if that is less than the schedule's
    share, the most confident positions.
    """
    confidence, tokens = logits.float().softmax(-1).max(-1)
    confidence = confidence.masked_fill(~masked, -torch.inf)
    share = _share(job, step)
    threshold = torch.inf if job.threshold is None else job.threshold
    for row in range(len(canvas)):
        chosen = confidence[row] > threshold
        if int(chosen.sum()) < share:
            count = min(share, int(masked[row].sum()))
            chosen = torch.zeros_like(chosen)
            chosen[confidence[row].topk(count).indices] = True
        canvas[row, chosen] = tokens[row, chosen]
        masked[row, chosen] = False


def _share(job: Job, step: int) -> int:
    steps = job.steps if job.threshold is None else job.block_length
    share, more = divmod(job.block_length, steps)
    return share + (step < more)
