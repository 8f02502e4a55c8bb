"""transformers' own ``generate`` of DiffusionGemma: keys and values kept, batches of one length."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import DiffusionGemmaForBlockDiffusion
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    DiffusionGemmaGenerationConfig,
    EntropyBoundSamplerConfig,
)

from perf.peers.protocol import Batch, Job, Outcome, Setup, run_in_batches, serve


class GemmaPeer:
    """Canvases of random tokens; all of them take ``steps`` steps."""

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        self._model = DiffusionGemmaForBlockDiffusion.from_pretrained(
            setup.folder, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self._forwards = 0
        self._model.model.decoder.register_forward_hook(self._count)
        self._model.model.encoder.register_forward_hook(self._count)

    def _count(self, *ignored: object) -> None:
        self._forwards += 1

    def run(self, job: Job) -> Outcome:
        """See ``Peer``."""
        return run_in_batches(job, lambda prompts: self._run_batch(job, prompts))

    def _run_batch(self, job: Job, prompts: list[list[int]]) -> Batch:
        before = self._forwards
        config = DiffusionGemmaGenerationConfig(
            max_new_tokens=job.max_tokens,
            max_denoising_steps=job.steps,
            sampler_config=EntropyBoundSamplerConfig(entropy_bound=0.1),
            # the smallest that is accepted: no canvas is confident enough to end early
            confidence_threshold=1e-30,
            disable_compile=True,
        )
        torch.manual_seed(0)
        found = self._model.generate(torch.tensor(prompts), generation_config=config)
        tokens = found.sequences[:, len(prompts[0]) :].tolist()
        return Batch(tokens, self._forwards - before)


if __name__ == "__main__":
    serve(GemmaPeer)
