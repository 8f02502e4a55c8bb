"""What results tell of each token: the step that settled it, and the most probable ones then."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blockdiff.core import BlockResult, Mode, Request, SamplingParams
from blockdiff.engine import Engine, EngineConfig

from .adjusted_models import AdjustedModel
from .edit_models import DELETE, EDITS, SPLIT, Scripted
from .fakes import MASK, Array, FakeModel, HashModel, info, request, run
from .test_algorithms import EVERY

EDITED = {"threshold": 0.3, "editing_threshold": 0.1, "max_post_steps": 4}
GRID = {"block_anchor": "zero"}


def engine(model: FakeModel, slots: int = 3) -> Engine:
    return Engine(model, EngineConfig(max_slots=slots, max_context=64))


def log_softmax(row: Array) -> Array:
    shifted: Array = row - row.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def check_block(block: BlockResult, shown: list[Any], first: int, wanted: Request) -> None:
    """``shown``: canvas and logits of each step; ``first``: place of the first output token."""
    canvases = [canvas[first:] for canvas, _ in shown] + [list(block.token_ids)]
    pinned = {place for place, _ in wanted.pinned}
    for place in range(len(block.token_ids)):
        if place in pinned and not block.block_index:
            assert (block.settled_steps[place], block.top_log_probs[place]) == (-1, ())
            continue
        changes = [s for s in range(len(shown)) if canvases[s][place] != canvases[s + 1][place]]
        assert block.settled_steps[place] == changes[-1]
        values = log_softmax(shown[changes[-1]][1][first + place])
        best = np.argsort(-values, kind="stable")[: wanted.num_top_log_probs]
        top = block.top_log_probs[place]
        assert [token for token, _ in top] == best.tolist()
        np.testing.assert_allclose([value for _, value in top], values[best], atol=1e-5)
        own = {**dict(top)}.get(block.token_ids[place])
        assert own is None or own == pytest.approx(block.log_probs[place], abs=1e-6)


@pytest.mark.parametrize(
    ("facts", "fields"),
    [
        ({}, {"threshold": 0.4}),
        (GRID, {"denoise_steps": 3, "presence_penalty": 1.0, "logit_bias": ((4, 3.0),)}),
        ({}, {"threshold": 0.4, "temperature": 1.0, "pinned": ((1, 7), (2, 8))}),
        (EVERY, {"algorithm": "entropy_bounded"}),
        (EVERY, EDITED),
    ],
    ids=["threshold", "steps and penalties", "drawn with pins", "entropy", "edited"],
)
def test_steps_and_rivals_are_those_of_the_last_change(
    facts: dict[str, Any], fields: dict[str, Any]
) -> None:
    def wanted(uid: int, count: int) -> Request:
        asked = {"num_top_log_probs": count, "wants_step_map": count > 0}
        return request(uid, range(3, 6 + uid), max_tokens=14, ignore_eos=True, **asked, **fields)

    own = info(**facts)
    requests = [wanted(uid, 3 * (uid % 3)) for uid in range(5)]
    results = run(engine(HashModel(own)), requests)
    for one in requests:
        if not one.wants_step_map:
            assert not any(b.settled_steps or b.top_log_probs for b in results[one.uid])
            continue
        alone = AdjustedModel(HashModel(own), one)
        neutral = SamplingParams(one.sampling.temperature, seed=one.sampling.seed)
        run(engine(alone), [replace(one, sampling=neutral)])
        shown = defaultdict(list)
        for start, canvas, logits in alone.shown:
            shown[start].append((canvas, logits))
        starts = sorted(shown)
        assert len(starts) == len(results[one.uid])
        for block, start in zip(results[one.uid], starts, strict=True):
            check_block(block, shown[start], max(len(one.input_ids) - start, 0), one)


def test_single_tokens() -> None:
    wanted = request(
        max_tokens=7, mode=Mode.AUTOREGRESSIVE, wants_step_map=True, num_top_log_probs=2
    )
    blocks = run(engine(HashModel()), [wanted])[1]
    for block in blocks:
        assert block.settled_steps == tuple(range(len(block.token_ids)))
        for token, value, top in zip(
            block.token_ids, block.log_probs, block.top_log_probs, strict=True
        ):
            assert top[0] == (token, pytest.approx(value, abs=1e-6)) and top[1][1] <= value


def test_tokens_that_move_take_their_steps_along() -> None:
    """Step 0 fills the block, 1 deletes place 0, 2 fills the end, 3 splits at place 1."""
    answers = {
        (MASK,) * 4: [1, 2, 3, 4],
        (1, 2, 3, 4): [DELETE, 2, 3, 4],
        (2, 3, 4, MASK): [2, 3, 4, 5],
        (2, 3, 4, 5): [2, SPLIT, 4, 5],
        (2, MASK, 3, 4): [2, 6, 3, 4],
    }
    model = Scripted(answers)
    fields: dict[str, Any] = {"threshold": 0.5, "editing_threshold": 0.5, "max_post_steps": 9}
    asked = {"wants_step_map": True, "num_top_log_probs": 1}
    wanted = request(1, [9] * 4, max_tokens=4, ignore_eos=True, **asked, **fields)
    other = request(2, [9] * 4, max_tokens=4, ignore_eos=True, threshold=0.5, wants_step_map=True)
    results = run(engine(model), [wanted, other])
    (block,) = results[1]
    assert block.token_ids == (2, 6, 3, 4)
    assert block.settled_steps == (0, 4, 0, 0)
    assert [top[0][0] for top in block.top_log_probs] == [2, 6, 3, 4]
    assert results[2][0].settled_steps == (0, 0, 0, 0)


def test_models_of_edits_say_nothing_that_nobody_asked_for() -> None:
    blocks = run(engine(HashModel(info(**EDITS))), [request(max_tokens=9, threshold=0.5)])[1]
    assert all(block.settled_steps == block.top_log_probs == () for block in blocks)
