"""A model whose canvases start as random tokens, behind the server's own defaults."""

import queue
from collections.abc import Iterator
from typing import Any

import pytest

from blockdiff.core import BlockResult, PlaceState
from blockdiff.errors import RequestError
from blockdiff.serving.block_diffusion import ServedEngine, build_engine
from blockdiff.serving.settings import Settings
from blockdiff.serving.spec import RequestSpec
from tests.engine.checkpoint import CANVAS_CHECKPOINT, make_checkpoint

_, OPEN, SETTLED = PlaceState


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    folder = tmp_path_factory.mktemp("served")
    model = make_checkpoint(folder / "checkpoint", CANVAS_CHECKPOINT)
    settings = Settings(model, folder / "relay.sock", slots=2, threads=1, max_context=64)
    engine = build_engine(settings)
    yield engine
    engine.loop.shutdown(0.0)


def answer(served: ServedEngine, uid: int, **fields: Any) -> list[BlockResult]:
    wanted = RequestSpec(max_tokens=20, ignore_eos=True, **fields)
    request = wanted.engine_request(uid, (19, 42, 101), None)
    served.validate(request)
    found: queue.Queue[BlockResult] = queue.Queue()
    served.loop.submit(request, found.put, served.loop.wait_for_slot(lambda: None))
    results = [found.get(timeout=60)]
    while not results[-1].is_final:
        results.append(found.get(timeout=60))
    return results


def test_default_parameters_answer(served: ServedEngine) -> None:
    blocks = answer(served, 1, seed=5)
    assert [len(block.token_ids) for block in blocks] == [8, 8, 4]
    assert all(0 < block.denoise_steps <= 48 for block in blocks)
    again = answer(served, 2, seed=5, algorithm="entropy_bound")
    assert [block.token_ids for block in again] == [block.token_ids for block in blocks]
    steps = answer(served, 3, denoise_steps=2)
    assert [block.denoise_steps for block in steps] == [2, 2, 2]


def test_all_of_a_random_canvas_is_open_until_it_is_finished(served: ServedEngine) -> None:
    plain = answer(served, 5, seed=5, denoise_steps=4)
    pinned = {"seed": 5, "denoise_steps": 4, "pinned": ((2, 7),)}
    for uid, fields in ((6, {"seed": 5, "denoise_steps": 4}), (7, pinned)):
        results = answer(served, uid, stream_denoise=True, **fields)
        blocks = [result for result in results if not result.is_partial]
        if "pinned" not in fields:
            assert [block.token_ids for block in blocks] == [block.token_ids for block in plain]
        canvases = [result.canvas for result in results]
        assert len(canvases) == sum(block.denoise_steps for block in blocks)
        for result, canvas in zip(results, canvases, strict=True):
            assert canvas is not None and -1 not in canvas.token_ids
            states = set(canvas.states)
            if result.is_partial:
                is_given = "pinned" in fields and canvas.first_place == 0
                assert states == ({OPEN, SETTLED} if is_given else {OPEN})
            else:
                assert states == {SETTLED} and canvas.token_ids == result.token_ids


def test_what_it_has_not_is_refused(served: ServedEngine) -> None:
    for fields, text in (
        ({"threshold": 0.5}, "threshold"),
        ({"temperature": 1.0}, "temperature"),
        ({"algorithm": "low_confidence"}, "algorithm"),
    ):
        with pytest.raises(RequestError, match=text):
            answer(served, 4, **fields)
