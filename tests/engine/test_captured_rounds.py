"""Rounds that are filled up and replayed decide what rounds of their own size decide.

Run: pytest tests/engine/test_captured_rounds.py
"""

import random
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.core import BlockResult, Mode, Request
from blockdiff.engine import Engine, EngineConfig, captured_choice, forward
from blockdiff.engine.captured_choice import ChoiceKey, Way
from blockdiff.engine.recorder import Recorder, Step
from blockdiff.engine.step_runner import StepRunner
from blockdiff.engine.step_shapes import LONG, REASONS, SIZE
from blockdiff.engine.uniform import UniformRounds
from blockdiff.errors import EngineDeadError
from blockdiff.models.trunk import LanguageModel
from blockdiff.transfer import Array
from blockdiff_kernels.head import keeping
from blockdiff_kernels.implementation import using

from ..models.families import FAMILIES, make_model
from .checkpoint import CHECKPOINT
from .fakes import request
from .host_recorder import HostRecorder

SLOTS = 4
SHARED = tuple(range(2, 26))
FILTERS: dict[int, dict[str, Any]] = {4: {"top_k": 4, "top_p": 0.9}, 7: {"top_p": 0.7}}


@pytest.fixture(params=FAMILIES, scope="module")
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LanguageModel:
    return make_model(request.param, tmp_path_factory.mktemp("model"))


def requests(model: LanguageModel, count: int) -> list[Request]:
    """Of all lengths and ways, some with a common beginning."""
    draw, facts, found = random.Random(1), model.info, []
    for uid in range(count):
        prompt = tuple(draw.choices(range(2, 30), k=draw.randrange(1, 30)))
        ways: dict[str, Any] = {"min_tokens": 3} if uid % 3 == 0 else {}
        if uid % 3 == 1:
            ways |= {"temperature": 0.8, "seed": uid} | FILTERS.get(uid, {})
        if facts.uniform is not None:
            ways = {"denoise_steps": 3, "min_tokens": uid % 3}
        elif facts.supports_autoregressive and uid % 4 == 3:
            ways["mode"] = Mode.AUTOREGRESSIVE
        elif uid % 4 == 2:
            ways["denoise_steps"] = 3
        elif uid == 5 and "entropy_bounded" in facts.algorithms:
            ways = {"algorithm": "entropy_bounded", "entropy_bound": 3.0}
        tokens = draw.randrange(1, 30)
        found.append(
            request(uid, SHARED + prompt if uid % 2 else prompt, max_tokens=tokens, **ways)
        )
    return found


def play(engine: Engine, waiting: list[Request]) -> dict[int, list[BlockResult]]:
    """All results by request; they come one by one or together, and one is cancelled."""
    results: dict[int, list[BlockResult]] = {own.uid: [] for own in waiting}
    draw, rounds = random.Random(2), 0
    while waiting or engine.has_work:
        while waiting and engine.free_slots and draw.random() < 0.4:
            engine.add_request(waiting.pop(0))
        if rounds == 12:
            engine.cancel(2)
        for result in engine.step():
            assert result.error is None
            results[result.request_uid].append(result)
        rounds += 1
    return results


def engine_of(model: LanguageModel, recorder: Recorder | None) -> Engine:
    config = EngineConfig(
        max_slots=SLOTS,
        max_context=96,
        prefill_token_budget=24,
        expert_statistics_interval=1,
        snapshot_interval=16 if model.formulation in "ABC" else 512,
        graph_blocks=(1, 2, 5, 8),
    )
    engine = Engine(model, config, recorder=recorder)
    engine.warm_up()
    return engine


def refuse(*_: Any) -> NoReturn:
    raise AssertionError("a choice ran plainly")


def test_replayed_rounds_decide_the_same(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, replayed = engine_of(model, None), engine_of(model, HostRecorder())
    expected = play(plain, requests(model, 9))
    used, run = set(), StepRunner.run

    def noting(self: StepRunner, key: Hashable, arrays: Mapping[str, Array]) -> Sequence[Tensor]:
        used.add(key)
        return run(self, key, arrays)

    monkeypatch.setattr(StepRunner, "run", noting)
    monkeypatch.setattr(forward, "_choose", refuse)
    monkeypatch.setattr(UniformRounds, "_choose", refuse)
    found = play(replayed, requests(model, 9))
    for uid, wanted in expected.items():
        got = found[uid]
        assert [own.token_ids for own in got] == [own.token_ids for own in wanted], uid
        for mine, theirs in zip(got, wanted, strict=True):
            assert mine.finish_reason == theirs.finish_reason
            np.testing.assert_allclose(mine.log_probs, theirs.log_probs, rtol=1e-4, atol=1e-4)
    counts = replayed.step_counts
    assert counts.replayed > 15
    # a short prompt that comes while nobody decodes has no shape
    assert set(counts.plain) <= set(REASONS) and counts.plain[LONG] and counts.plain[SIZE] < 3
    assert counts.decided > (15 if model.info.uniform is None else 5)
    if model.info.uniform is None:
        choices = [key for key in used if isinstance(key, ChoiceKey)]
        assert {key.way for key in choices} == set(Way)
        has_entropy = {key.has_entropy for key in choices}
        assert has_entropy == {False, "entropy_bounded" in model.info.algorithms}
    assert plain.step_counts.replayed == 0 and not plain.step_counts.plain
    mine, theirs = replayed.publish_statistics(), plain.publish_statistics()
    if model.info.num_experts:
        assert mine is not None and theirs is not None
        assert (mine.rows, mine.rounds) == (theirs.rows, theirs.rounds)
        # a near tie may go either way where products have other shapes
        assert np.abs(mine.hits - theirs.hits).sum() <= 1e-3 * theirs.hits.sum()


# What one engine of the family decides, one request after the other.
KERNEL_CASES: dict[str, list[dict[str, Any]]] = {
    "hybrid C": [{"max_tokens": 7}],
    "sdar": [
        {"top_k": 5, "top_p": 0.9},
        {"top_p": 0.7, "max_tokens": 7},
        {"algorithm": "entropy_bounded", "entropy_bound": 3.0, "denoise_steps": None},
    ],
    "diffusion_gemma": [{"temperature": 0.0, "max_tokens": 7}],
}


@pytest.mark.parametrize("family", KERNEL_CASES)
def test_replayed_kernels_decide_the_same(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are interpreted: few rounds, one shape of each kind."""
    monkeypatch.setattr(keeping, "PASSES", 6)  # enough for so few tokens
    monkeypatch.setattr(captured_choice, "MOST_LISTED", 8)

    def decide(folder: Path, recorder: Recorder | None) -> list[BlockResult]:
        model = make_model(family, folder)
        config = EngineConfig(max_slots=1, max_context=16, graph_blocks=(2,))
        engine = Engine(model, config, recorder=recorder)
        with torch.inference_mode():
            engine._rounds.capture()
        drawn = {"max_tokens": 11, "temperature": 0.7, "seed": 3, "denoise_steps": 2}
        found: list[BlockResult] = []
        for uid, ways in enumerate(KERNEL_CASES[family]):
            found += play(engine, [request(uid, (5, 4), **(drawn | ways))])[uid]
        if recorder is not None:
            assert engine.step_counts.replayed > 1 and engine.step_counts.decided > 1
        return found

    expected = decide(tmp_path / "plain", None)
    monkeypatch.setattr(forward, "_choose", refuse)
    monkeypatch.setattr(UniformRounds, "_choose", refuse)
    with using("triton"):
        found = decide(tmp_path / "replayed", HostRecorder())
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.token_ids == theirs.token_ids
        np.testing.assert_allclose(mine.log_probs, theirs.log_probs, rtol=1e-3, atol=1e-3)


def test_canvases_that_fill_up_leave_progress_alone(tmp_path: Path) -> None:
    model, engines = make_model("diffusion_gemma", tmp_path), []
    for recorder in (None, HostRecorder()):
        config = EngineConfig(max_slots=1, max_context=32, graph_blocks=(2,))
        engines.append(Engine(model, config, recorder=recorder))
        engines[-1].warm_up()
        # a canvas with places of its own is like none that fills up
        own = request(0, (5, 4), max_tokens=8, denoise_steps=3, pinned=((1, 9), (2, 4)))
        play(engines[-1], [own])
    plain, kept = engines[0]._uniform, engines[1]._rounds.canvases
    assert plain is not None and kept is not None and engines[1].step_counts.decided == 3
    assert plain._progress.best.any()
    for mine, theirs in zip(kept.progress, plain._progress, strict=True):
        np.testing.assert_array_equal(mine[:1], theirs)


class _Broken:
    pool_bytes = 0

    def capture(self, step: Step) -> Step:
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("is_required", [True, False])
def test_what_cannot_be_captured_runs_plainly_unless_it_must_not(is_required: bool) -> None:
    config = EngineConfig(max_slots=2, max_context=32)
    engine = Engine(load_model(CHECKPOINT), config, recorder=_Broken())
    assert engine._rounds.captured is not None
    engine._rounds.captured.is_required = is_required
    if is_required:
        with pytest.raises(EngineDeadError, match="rounds cannot be captured: operation not"):
            engine.warm_up()
        return
    engine.warm_up()
    found = play(engine, [request(2, (1, 2, 3), max_tokens=9)])
    assert found[2][-1].is_final and engine.step_counts.replayed == 0
