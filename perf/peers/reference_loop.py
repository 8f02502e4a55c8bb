"""The published LLaDA2 decoding loop, restated plainly over transformers' Qwen3-MoE.

Every step computes the whole sequence up to the open block again; there are no keys and values to
reuse. It computes logits of the open block only, which is less than the published loop does.
Written from the published algorithm (inclusionAI LLaDA2.0); no code is copied.
"""

import torch
from torch import Tensor

from perf.peers.protocol import Batch, Job, Outcome, Setup, run_in_batches, serve
from perf.peers.qwen3_moe import Qwen3Moe, block_causal
from perf.peers.settling import settle


class ReferenceLoop:
    """Batches of prompts of one length run to their end together."""

    def __init__(self, setup: Setup) -> None:
        self._model = Qwen3Moe(setup)

    def run(self, job: Job) -> Outcome:
        """See ``Peer``."""
        return run_in_batches(job, lambda prompts: self._run_batch(job, prompts))

    @torch.inference_mode()
    def _run_batch(self, job: Job, prompts: list[list[int]]) -> Batch:
        before = self._model.forwards
        block, length = job.block_length, len(prompts[0])
        blocks = -(-(length + job.max_tokens) // block)
        ids = torch.full((len(prompts), blocks * block), job.mask_token_id)
        ids[:, :length] = torch.tensor(prompts)
        is_open = torch.arange(ids.shape[1]).expand_as(ids) >= length
        for number in range(length // block, blocks):
            self._decide_block(job, ids, is_open.clone(), number)
        tokens = ids[:, length : length + job.max_tokens].tolist()
        return Batch(tokens, self._model.forwards - before)

    def _decide_block(self, job: Job, ids: Tensor, is_open: Tensor, number: int) -> None:
        start, end = number * job.block_length, (number + 1) * job.block_length
        visible = block_causal(0, end, job.block_length)
        canvas, masked = ids[:, start:end], is_open[:, start:end]
        for step in range(job.block_length):
            if not masked.any():
                return
            logits = self._model.forward(ids[:, :end], visible, keep=job.block_length)
            settle(job, step, logits, canvas, masked)


if __name__ == "__main__":
    serve(ReferenceLoop)
