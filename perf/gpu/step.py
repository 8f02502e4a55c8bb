"""Whole denoise steps through the model's classes: launched one by one, and as a CUDA graph.

Knows models and rounds; knows nothing of files, requests or reports.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff.core import Phase
from blockdiff.engine.recorder import CudaRecorder, PlainRecorder, Recorder, Step
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.trunk import LanguageModel
from blockdiff.transfer import to_device
from blockdiff_kernels.head import Rules, choose
from blockdiff_kernels.implementation import using
from perf.gpu.correctness import Verdict
from perf.gpu.random_weights import random_model
from perf.gpu.sizes import Sizes

STEP_LABEL = "step/few-layers"
# how much further from float32 kernels may be than the definitions in bfloat16 are
WORSE = 1.5


class StepWork(NamedTuple):
    """A step that can be run again and again: it writes nothing that it reads."""

    run: Step
    rows: int


def make_step(model: LanguageModel, sizes: Sizes, blocks: int) -> StepWork:
    """A preview of ``blocks`` blocks, each of a request of ``sizes.context`` committed tokens."""
    caches = model.new_caches(blocks, sizes.context + sizes.block)
    tokens = [1 + n for n in range(sizes.block)]
    every = range(sizes.block)
    segments = [
        Segment(Phase.PREVIEW, slot, sizes.context, [(t + 7 * slot) % 250 for t in tokens], every)
        for slot in range(blocks)
    ]
    host = model.prepare(RoundBatch.from_segments(segments), caches)
    moved = to_device(host.arrays, model.device)

    banned = torch.full((blocks * sizes.block, 1), sizes.vocabulary - 1, dtype=torch.int32)
    rules = Rules(banned.to(model.device))

    def run() -> Sequence[Tensor]:
        hidden = model.run(host, moved, caches)
        chosen = choose(hidden, model.output, None, rules)
        return [hidden, chosen.tokens, chosen.log_probs]

    return StepWork(run, blocks * sizes.block)


def captured(work: StepWork, device: torch.device) -> Step:
    """The step as a CUDA graph, or itself where there is none."""
    recorder: Recorder = PlainRecorder() if device.type == "cpu" else CudaRecorder(device)
    return recorder.capture(work.run)


def check_step(sizes: Sizes, device: torch.device) -> Verdict:
    """A few full-size layers: kernels are not much further from float32 than the definitions.

    The median over rows: routers that see other bits may choose other experts for some of them.
    """
    found = {}
    # delta layers and an attention layer
    keys = sizes.config(sizes.attention_every)
    for name, dtype, kernels in (
        ("exact", "float32", "reference"),
        ("plain", "bfloat16", "reference"),
        ("kernels", "bfloat16", "triton"),
    ):
        with using(kernels):
            model = random_model(keys, device, dtype)
            found[name] = make_step(model, sizes, 2).run()[0].float()
    plain, own = (median_error(found[name], found["exact"]) for name in ("plain", "kernels"))
    return Verdict(STEP_LABEL, own, WORSE * plain + 1e-6)


def median_error(found: Tensor, exact: Tensor) -> float:
    """Of the rows [R, H], relative to their norms."""
    errors = (found - exact).norm(dim=1) / exact.norm(dim=1)
    return float(errors.nan_to_num(float("inf")).median())
