"""dlmserve's engine, its own scheduler and loop, over transformers' Qwen3-MoE.

It serves models that see the whole sequence in both directions, later masks included, and computes
all of it in every step. Its tokens are therefore other ones; its batching is what is compared. Its
engine is made without its loader, which fetches LLaDA-8B from a hub.
"""

import asyncio
from types import SimpleNamespace

import torch
from dlmserve.engine import Engine
from dlmserve.sampler import SamplingParams
from dlmserve.scheduler import DiffusionScheduler
from torch import Tensor

from perf.peers.protocol import Job, Outcome, Setup, serve
from perf.peers.qwen3_moe import Qwen3Moe


class NumberTokenizer:
    """Texts are token numbers with spaces between them."""

    pad_token_id = 0
    eos_token_id = 0

    def __call__(self, texts: list[str], **ignored: object) -> dict[str, Tensor]:
        return {"input_ids": torch.tensor([[int(word) for word in text.split()] for text in texts])}

    def batch_decode(self, ids: Tensor, **ignored: object) -> list[str]:
        """Not looked at by the benchmark."""
        return [""] * len(ids)


class FullModel:
    """Every row sees every token of its sequence; logits of all positions, as the engine asks."""

    def __init__(self, own: Qwen3Moe) -> None:
        self._own = own

    def forward(
        self, ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> SimpleNamespace:
        """attention_mask [N, T] is all ones, since prompts have one length."""
        visible = attention_mask[0].bool().expand(ids.shape[1], -1)
        return SimpleNamespace(logits=self._own.forward(ids, visible, keep=ids.shape[1]))

    __call__ = forward


class DlmservePeer:
    """Requests are submitted when they arrive; the engine decides which share a step."""

    def __init__(self, setup: Setup) -> None:
        self._model = Qwen3Moe(setup)

    def run(self, job: Job) -> Outcome:
        """See ``Peer``."""
        assert job.threshold is None, "dlmserve decodes by schedule only"
        before = self._model.forwards
        tokens, finished = asyncio.run(self._run(job))
        return Outcome(tokens, self._model.forwards - before, finished)

    async def _run(self, job: Job) -> tuple[list[list[int]], list[float]]:
        engine = self._engine(job)
        loop = asyncio.create_task(engine._engine_loop())
        start = asyncio.get_running_loop().time()
        found = await asyncio.gather(
            *(self._one(engine, job, number, start) for number in range(len(job.prompts)))
        )
        engine._shutdown = True
        await loop
        return [tokens for tokens, _ in found], [moment for _, moment in found]

    async def _one(
        self, engine: Engine, job: Job, number: int, start: float
    ) -> tuple[list[int], float]:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(start + job.arrivals[number] - now(), 0.0))
        params = SamplingParams(
            num_denoising_steps=job.steps * -(-job.max_tokens // job.block_length),
            gen_length=job.max_tokens,
            block_length=job.block_length,
        )
        text = " ".join(map(str, job.prompts[number]))
        (output,) = await engine.generate_async([text], params, prerendered=True)
        return output.output_ids.tolist(), now() - start

    def _engine(self, job: Job) -> Engine:
        engine = Engine.__new__(Engine)
        engine._loaded = SimpleNamespace(
            model=FullModel(self._model),
            tokenizer=NumberTokenizer(),
            device=torch.device("cpu"),
            mask_id=job.mask_token_id,
        )
        engine._scheduler = DiffusionScheduler(max_batch=8)
        engine._shutdown = False
        return engine


if __name__ == "__main__":
    serve(DlmservePeer)
