"""The training form of the demo model computes what the engine computes, in float32."""

import pytest
import torch

from blockdiff.checkpoint import load_model
from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from demo.data import Packer
from demo.experts import SparseMoe
from demo.export import export_checkpoint
from demo.model import DemoModel
from demo.streams import BLOCK, DemoConfig, build_streams
from demo.tokenizer import build_tokenizer

TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A perturbed random training model and the same weights loaded by the engine."""
    torch.manual_seed(0)
    model = DemoModel(DemoConfig(vocab_size=568))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
            p.copy_(p.bfloat16().float())
    folder = tmp_path_factory.mktemp("checkpoint")
    export_checkpoint(model, folder)
    return model.eval(), load_model(folder, dtype="float32")


def training_logits(model: DemoModel, batch, monkeypatch) -> torch.Tensor:
    monkeypatch.setattr(SparseMoe, "SLACK", 8.0)
    streams = build_streams(batch.real, batch.sample, batch.chunk, model.config)
    with torch.no_grad():
        hidden, _ = model(batch.clean, batch.noisy, streams)
        return model.lm_head(hidden)


def test_packed_batch_equals_engine_rounds(pair, monkeypatch) -> None:
    """Every sample and noisy block of a packed batch, run alone through the engine."""
    model, engine_model = pair
    batch = Packer(build_tokenizer(), seed=3, sequences=3).batch()
    logits = training_logits(model, batch, monkeypatch)
    checked = 0
    for n in range(batch.clean.shape[0]):
        for m in range(batch.chunk.shape[1]):
            start = int(batch.chunk[n, m]) * BLOCK
            same = batch.sample[n].repeat_interleave(BLOCK) == batch.sample[n, start // BLOCK]
            before = same & (batch.real[n] > 0) & (torch.arange(same.numel()) < start)
            prefix = batch.clean[n][before].tolist()
            caches = engine_model.new_caches(1, 256)
            rows = range(len(prefix))
            prefill = Segment(Phase.PREFILL, 0, 0, prefix, rows)
            canvas = batch.noisy[n, m].tolist()
            preview = Segment(Phase.PREVIEW, 0, len(prefix), canvas, range(BLOCK))
            with torch.inference_mode():
                got = engine_model.forward(RoundBatch.from_segments([prefill, preview]), caches)
            clean = logits[n, : batch.clean.shape[1]][before]
            first = batch.clean.shape[1] + m * BLOCK
            noisy = logits[n, first : first + BLOCK]
            wanted = torch.cat([clean, noisy])
            torch.testing.assert_close(got, wanted, atol=TOLERANCE, rtol=1e-3)
            checked += 1
    assert checked == 12
