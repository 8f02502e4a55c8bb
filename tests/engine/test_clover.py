"""The engine on a tiny real checkpoint: batches, chunks and both modes against recomputing."""

import copy
import dataclasses
import functools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from blockdiff.checkpoint import load_model
from blockdiff.core import Mode, Phase, Request
from blockdiff.engine import Engine, EngineConfig
from blockdiff.models.base import BlockDiffusionModel, RoundBatch, Segment

from .fakes import Array, FakeModel, decode_alone, ids, request, run

CHECKPOINT = Path(__file__).parents[1] / "golden" / "fixtures" / "clover_moe" / "layers4_block8"


@functools.cache
def model(anchor: str = "prompt_end") -> BlockDiffusionModel:
    loaded = copy.copy(load_model(CHECKPOINT))
    loaded.info = dataclasses.replace(loaded.info, block_anchor=anchor)
    return cast(BlockDiffusionModel, loaded)


class Recompute(FakeModel):
    """Rows of the real model, each from nothing: prefill everything, then look once."""

    def __init__(self, real: BlockDiffusionModel) -> None:
        super().__init__(real.info)
        self.real = real

    def rows(self, prefix: Sequence[int], seen: Sequence[int], is_preview: bool) -> Array:
        places = range(len(seen))
        if is_preview:
            segments = [Segment(Phase.PREFILL, 0, 0, prefix)] if prefix else []
            segments.append(Segment(Phase.PREVIEW, 0, len(prefix), seen, places))
        else:
            segments = [Segment(Phase.PREFILL, 0, 0, [*prefix, *seen], places)]
        caches = self.real.new_caches(1, 256)
        with torch.inference_mode():
            logits: Array = self.real.forward(RoundBatch.from_segments(segments), caches).numpy()
        return logits


def mixed_requests() -> list[Request]:
    """Prompts of many lengths, block lengths, schedules and thresholds, and both modes."""
    ways: list[dict[str, Any]] = [
        {"threshold": 0.5},
        {"denoise_steps": 3},
        {"mode": Mode.AUTOREGRESSIVE},
        {"threshold": 0.9, "block_length": 4},
        {"denoise_steps": 8, "threshold": 0.7},
    ]
    generator = torch.Generator().manual_seed(5)
    wanted = []
    for uid in range(10):
        length = [1, 3, 8, 17, 40][uid % 5] + uid // 5
        prompt = torch.randint(0, 120, (length,), generator=generator).tolist()
        wanted.append(request(uid, prompt, max_tokens=7 + 3 * (uid % 4), **ways[uid % 5]))
    return wanted


@pytest.mark.parametrize("anchor", ["prompt_end", "zero"])
def test_greedy_output_is_the_same_alone_batched_and_staggered(anchor: str) -> None:
    wanted = mixed_requests()

    def engine(slots: int, budget: int) -> Engine:
        config = EngineConfig(max_slots=slots, max_context=128, prefill_token_budget=budget)
        return Engine(model(anchor), config)

    shared = engine(1, 512)
    alone = {one.uid: ids(run(shared, [one])[one.uid]) for one in wanted}
    batched = {uid: ids(blocks) for uid, blocks in run(engine(10, 512), wanted).items()}
    assert batched == alone
    staggered = {uid: ids(blocks) for uid, blocks in run(engine(3, 11), wanted[::-1]).items()}
    assert staggered == alone


@pytest.mark.parametrize("anchor", ["prompt_end", "zero"])
def test_output_is_that_of_recomputing_everything(anchor: str) -> None:
    recompute = Recompute(model(anchor))
    engine = Engine(model(anchor), EngineConfig(max_slots=4, max_context=128))
    wanted = mixed_requests()[:7]
    for uid, blocks in run(engine, wanted).items():
        assert ids(blocks) == decode_alone(recompute, wanted[uid])[0]


@pytest.mark.parametrize("formulation", ["A", "B"])
def test_other_formulations_decode_as_if_recomputed(tmp_path: Path, formulation: str) -> None:
    folder = shutil.copytree(CHECKPOINT, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "preview_formulation": formulation}))
    changed = cast(BlockDiffusionModel, load_model(folder))
    recompute, wanted = Recompute(changed), mixed_requests()[:4]
    engine = Engine(changed, EngineConfig(max_slots=3, max_context=128))
    found = {uid: ids(blocks) for uid, blocks in run(engine, wanted).items()}
    assert found == {one.uid: decode_alone(recompute, one)[0] for one in wanted}


def test_autoregressive_output_is_the_repeated_argmax_of_causal_logits() -> None:
    prompt, output = [3, 1, 4, 1, 5], list[int]()
    recompute = Recompute(model())
    for _ in range(12):
        row = recompute.rows([], [*prompt, *output], False)[-1]
        row[model().info.mask_token_id] = float("-inf")
        output.append(int(row.argmax()))
    wanted = request(1, prompt, max_tokens=12, mode=Mode.AUTOREGRESSIVE, eos_ids=())
    assert ids(run(Engine(model(), EngineConfig(max_context=64)), [wanted])[1]) == output


def test_sampled_output_does_not_depend_on_the_batch() -> None:
    wanted = [
        dataclasses.replace(
            one,
            sampling=dataclasses.replace(one.sampling, temperature=0.8, top_p=0.9, seed=one.uid),
        )
        for one in mixed_requests()
    ]
    alone = {
        one.uid: ids(run(Engine(model(), EngineConfig(max_context=128)), [one])[one.uid])
        for one in wanted
    }
    config = EngineConfig(max_slots=5, max_context=128, prefill_token_budget=20)
    mixed = run(Engine(model(), config), wanted)
    assert {uid: ids(blocks) for uid, blocks in mixed.items()} == alone


def test_warm_up_runs_on_the_real_model() -> None:
    engine = Engine(model(), EngineConfig(max_slots=4, max_context=64))
    engine.warm_up()
    wanted = mixed_requests()[2]
    fresh = Engine(model(), EngineConfig(max_slots=1, max_context=64))
    assert run(engine, [wanted])[wanted.uid] == run(fresh, [wanted])[wanted.uid]
