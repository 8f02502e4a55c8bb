"""diffusers' ``LLaDA2Pipeline`` over transformers' Qwen3-MoE.

The pipeline asks its model for the whole sequence in every step and hands it a mask of ones; the
model object here turns that into the block-causal mask that LLaDA2's own model makes of it, and
computes logits of the open block only, which is less than LLaDA2's own model does.
"""

from types import SimpleNamespace

import torch
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline
from torch import Tensor

from perf.peers.protocol import Batch, Job, Outcome, Setup, run_in_batches, serve
from perf.peers.qwen3_moe import Qwen3Moe, block_causal


class BlockCausalModel(torch.nn.Module):
    """What the pipeline calls; it takes its device and dtype from here too."""

    def __init__(self, own: Qwen3Moe, block_length: int) -> None:
        super().__init__()
        self._own = own
        self._block_length = block_length
        self.device, self.dtype = torch.device("cpu"), torch.float32

    def forward(self, ids: Tensor, **ignored: Tensor) -> SimpleNamespace:
        """The mask of ones and the positions from 0 are implied."""
        visible = block_causal(0, ids.shape[1], self._block_length)
        return SimpleNamespace(logits=self._own.forward(ids, visible, keep=self._block_length))


class DiffusersPeer:
    """Batches of prompts of one length run to their end together."""

    def __init__(self, setup: Setup) -> None:
        self._model = Qwen3Moe(setup)

    def run(self, job: Job) -> Outcome:
        """See ``Peer``."""
        scheduler = BlockRefinementScheduler(block_length=job.block_length)
        model = BlockCausalModel(self._model, job.block_length)
        pipeline = LLaDA2Pipeline(model, scheduler, tokenizer=None)
        pipeline.set_progress_bar_config(disable=True)
        return run_in_batches(job, lambda prompts: self._run_batch(job, pipeline, prompts))

    def _run_batch(self, job: Job, pipeline: LLaDA2Pipeline, prompts: list[list[int]]) -> Batch:
        before = self._model.forwards
        found = pipeline(
            input_ids=torch.tensor(prompts),
            gen_length=job.max_tokens,
            block_length=job.block_length,
            num_inference_steps=job.steps if job.threshold is None else job.block_length,
            # above 1: nothing but the schedule
            threshold=2.0 if job.threshold is None else job.threshold,
            editing_threshold=None,
            sampling_method="greedy",
            mask_token_id=job.mask_token_id,
            eos_early_stop=False,
            output_type="seq",
        )
        return Batch(found.sequences.tolist(), self._model.forwards - before)


if __name__ == "__main__":
    serve(DiffusersPeer)
