"""Canvases of requests that watch: nothing else changes, and each says what its preview left."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockdiff.core import BlockResult, Mode, PlaceState
from blockdiff.decoding.acceptance import ALGORITHMS
from blockdiff.engine import Engine, EngineConfig

from .fakes import MASK, HashModel, ScriptModel, ids, info, request, run

RULES: dict[str, dict[str, Any]] = {
    "threshold": {"threshold": 0.4},
    "steps": {"denoise_steps": 3},
    "sequential": {"algorithm": "sequential"},
    "editing": {"threshold": 0.3, "editing_threshold": 0.1, "max_post_steps": 3},
    "one by one": {"mode": Mode.AUTOREGRESSIVE},
    "drawn": {"threshold": 0.4, "temperature": 0.9, "seed": 5},
}


def split(results: Sequence[BlockResult]) -> tuple[list[BlockResult], list[BlockResult]]:
    """Blocks, and results that are canvases only."""
    partial = [result for result in results if result.is_partial]
    return [result for result in results if not result.is_partial], partial


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_watching_changes_nothing_else(data: st.DataObject) -> None:
    model = HashModel(
        info(algorithms=ALGORITHMS, supports_editing=True, supports_autoregressive=True)
    )
    wanted, count = [], data.draw(st.integers(1, 4))
    for uid in range(count):
        rules = RULES[data.draw(st.sampled_from(sorted(RULES)))]
        prompt = data.draw(st.lists(st.integers(0, MASK - 1), min_size=1, max_size=9))
        most = data.draw(st.integers(1, 13))
        pinned = () if "mode" in rules else ((data.draw(st.integers(0, most - 1)), 7),)
        wanted.append(request(uid, prompt, max_tokens=most, pinned=pinned, **rules))
    plain = run(Engine(model, EngineConfig(max_slots=3)), wanted)
    watching = [replace(one, wants_canvases=one.uid % 3 != 1) for one in wanted]
    watched = run(Engine(model, EngineConfig(max_slots=3)), watching)
    for one in watching:
        blocks, partial = split(watched[one.uid])
        assert [replace(block, canvas=None) for block in blocks] == plain[one.uid]
        if not one.wants_canvases:
            assert not partial and all(block.canvas is None for block in blocks)
            continue
        check_canvases(watched[one.uid])


def check_canvases(results: Sequence[BlockResult]) -> None:
    """One canvas for every preview, in order; a block's last one holds the block."""
    total, steps, output = 0, 0, ids([r for r in results if not r.is_partial])
    for result in results:
        canvas = result.canvas
        assert canvas is not None
        assert canvas.step == steps and canvas.first_place == total
        assert len(canvas.token_ids) == len(canvas.log_probs) == len(canvas.states)
        assert all(value <= 1e-6 for value in canvas.log_probs)
        steps += 1
        if result.is_partial:
            assert (result.token_ids, result.denoise_steps, result.is_final) == ((), 0, False)
            for place, (token, state) in enumerate(
                zip(canvas.token_ids, canvas.states, strict=True)
            ):
                assert token != MASK
                if state is PlaceState.SETTLED and total + place < len(output):
                    assert token == output[total + place]
            continue
        assert result.denoise_steps == steps
        length = len(result.token_ids)
        assert canvas.token_ids[:length] == result.token_ids
        assert canvas.log_probs[:length] == pytest.approx(result.log_probs)
        assert set(canvas.states[:length]) <= {PlaceState.SETTLED}
        total, steps = total + length, 0


def test_masked_places_show_what_was_not_accepted() -> None:
    confidence = {3: 0.95, 4: 0.6, 5: 0.5, 6: 0.4}
    model = ScriptModel([0, 1, 2, 3, 4, 5, 6, 7], lambda position: confidence.get(position, 0.9))
    one = request(1, (1, 2, 3), max_tokens=4, threshold=0.9, wants_canvases=True)
    first, *_ = run(Engine(model), [one])[1]
    assert first.canvas is not None and first.is_partial
    assert first.canvas.token_ids == (3, 4, 5, 6)
    states = [state.name for state in first.canvas.states]
    assert states == ["SETTLED", "MASKED", "MASKED", "MASKED"]
    assert [math.exp(v) for v in first.canvas.log_probs] == pytest.approx([0.95, 0.6, 0.5, 0.4])
