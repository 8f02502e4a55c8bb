"""Stop strings: found across token and block boundaries, cut exactly, decided before the block."""

from collections.abc import Sequence
from typing import Any

import pytest

from blockdiff.core import FinishReason, Mode
from blockdiff.engine import Engine, EngineConfig

from .fakes import EOS, HashModel, LetterCodec, ScriptModel, ids, request, run

# "abcdefghij" from the first generated position (3) on.
SCRIPT = [30, 30, 30, *range(20)]
FIELDS = [{"threshold": 0.5}, {"denoise_steps": 4}, {"mode": Mode.AUTOREGRESSIVE}]
NAMES = ["at_once", "one_a_step", "autoregressive"]


def engine_for(model: Any, slots: int = 1) -> Engine:
    return Engine(model, EngineConfig(max_slots=slots), LetterCodec())


@pytest.mark.parametrize("fields", FIELDS, ids=NAMES)
@pytest.mark.parametrize("stop", ["a", "c", "d", "de", "cdef", "defghij", "k"])
def test_output_ends_with_the_token_that_completes_the_stop(
    fields: dict[str, Any], stop: str
) -> None:
    engine = engine_for(ScriptModel(SCRIPT))
    blocks = run(engine, [request(max_tokens=16, stop_strings=("zzz", stop), **fields)])[1]
    assert (
        LetterCodec().decode(ids(blocks))
        == "abcdefghijkl"[: "abcdefghijkl".index(stop) + len(stop)]
    )
    assert blocks[-1].finish_reason is FinishReason.STOP and blocks[-1].stop_reason == stop
    # Every block but the last is whole, and none follows the one that completes the stop.
    assert [len(block.token_ids) for block in blocks[:-1]] == [4] * (len(blocks) - 1)


@pytest.mark.parametrize("fields", FIELDS, ids=NAMES)
def test_a_stop_beyond_max_tokens_is_not_found(fields: dict[str, Any]) -> None:
    engine = engine_for(ScriptModel(SCRIPT))
    blocks = run(engine, [request(max_tokens=5, stop_strings=("ef",), **fields)])[1]
    assert len(ids(blocks)) == 5 and blocks[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("fields", FIELDS, ids=NAMES)
def test_a_stop_behind_eos_is_not_found_and_one_before_wins(fields: dict[str, Any]) -> None:
    script = [30, 30, 30, 0, 1, EOS, 2, 3]
    engine = engine_for(ScriptModel(script))
    blocks = run(engine, [request(1, max_tokens=8, stop_strings=("c",), **fields)])[1]
    assert ids(blocks) == [0, 1, EOS] and blocks[-1].stop_reason == str(EOS)
    blocks = run(engine, [request(2, max_tokens=8, stop_strings=("b",), **fields)])[2]
    assert ids(blocks) == [0, 1] and blocks[-1].stop_reason == "b"


def test_a_settled_stop_ends_the_block_early() -> None:
    order = {3: 0.8, 4: 0.7, 5: 0.6, 6: 0.5}
    engine = engine_for(ScriptModel(SCRIPT, lambda position: order.get(position, 0.5)))
    blocks = run(engine, [request(max_tokens=8, stop_strings=("b",))])[1]
    assert ids(blocks) == [0, 1] and blocks[-1].denoise_steps == 2


def test_min_tokens_keeps_stops_away() -> None:
    engine = engine_for(ScriptModel([30, 30, 30, *([0] * 20)]))
    for least in range(5):
        blocks = run(engine, [request(least, max_tokens=9, min_tokens=least, stop_strings=("a",))])
        assert len(ids(blocks[least])) == max(least, 1)


def test_requests_with_and_without_stops_share_rounds() -> None:
    model = HashModel()
    text = {}
    wanted = [request(uid, [uid + 1], max_tokens=20, eos_ids=()) for uid in range(3)]
    for uid, blocks in run(engine_for(model, 3), wanted).items():
        text[uid] = LetterCodec().decode(ids(blocks))
    stop = text[1][6:9]
    wanted[1] = request(1, [2], max_tokens=20, eos_ids=(), stop_strings=(stop,))
    mixed = {
        uid: LetterCodec().decode(ids(blocks))
        for uid, blocks in run(engine_for(model, 3), wanted).items()
    }
    assert mixed == {**text, 1: text[1][: text[1].index(stop) + 3]}


def test_a_tokenizer_that_fails_ends_only_its_own_request() -> None:
    class Broken(LetterCodec):
        def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
            raise KeyError("no such piece")

    model = HashModel()
    engine = Engine(model, EngineConfig(max_slots=2), Broken())
    results = run(engine, [request(1, stop_strings=("a",)), request(2)])
    assert results[1][-1].error is not None and "no such piece" in results[1][-1].error
    assert ids(results[2]) == ids(run(Engine(model), [request(2)])[2])
    assert engine.free_slots == 2
