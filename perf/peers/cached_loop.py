"""The published SDAR decoding loop, restated plainly over transformers' Qwen3-MoE.

Keys and values of finished blocks are kept; a finished block takes a forward of its own to store
them, as in the published loop. Written from the published algorithm (JetAstra/SDAR); no code is
copied.
"""

import torch
from torch import Tensor
from transformers import DynamicCache

from perf.peers.protocol import Batch, Job, Outcome, Setup, run_in_batches, serve
from perf.peers.qwen3_moe import Qwen3Moe, block_causal
from perf.peers.settling import settle


class CachedLoop:
    """Batches of prompts of one length, a multiple of the block, run to their end together."""

    def __init__(self, setup: Setup) -> None:
        self._model = Qwen3Moe(setup)

    def run(self, job: Job) -> Outcome:
        """See ``Peer``."""
        return run_in_batches(job, lambda prompts: self._run_batch(job, prompts))

    @torch.inference_mode()
    def _run_batch(self, job: Job, prompts: list[list[int]]) -> Batch:
        before = self._model.forwards
        ids, block = torch.tensor(prompts), job.block_length
        length = ids.shape[1]
        assert length % block == 0, "this restatement keeps prompts to whole blocks"
        cache = DynamicCache(config=self._model.model.config)
        self._model.forward(ids, block_causal(0, length, block), 0, cache)
        found = []
        for start in range(length, length + job.max_tokens, block):
            found.append(self._decide_block(job, start, len(ids), cache))
            is_last = start + block >= length + job.max_tokens
            if not is_last:
                self._model.forward(found[-1], block_causal(start, block, block), start, cache)
        tokens = torch.cat(found, dim=1)[:, : job.max_tokens].tolist()
        return Batch(tokens, self._model.forwards - before)

    def _decide_block(self, job: Job, start: int, rows: int, cache: DynamicCache) -> Tensor:
        block = job.block_length
        visible = block_causal(start, block, block)
        canvas = torch.full((rows, block), job.mask_token_id)
        masked = torch.ones_like(canvas, dtype=torch.bool)
        for step in range(block):
            if not masked.any():
                break
            logits = self._model.forward(canvas, visible, start, cache, keep=block)
            # The canvas's own keys and values hold for this step only.
            cache.crop(-block)
            settle(job, step, logits, canvas, masked)
        return canvas


if __name__ == "__main__":
    serve(CachedLoop)
