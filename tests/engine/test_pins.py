"""Infilling: output places whose tokens the request gives, against the plain definitions."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockdiff.core import FinishReason, Mode, Request
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import RequestError, UnsupportedError

from .edit_models import EDITS
from .fakes import EOS, MASK, VOCAB, HashModel, ScriptModel, decode_alone, ids, info, request, run
from .test_algorithms import EVERY, decode

TOKENS = st.integers(0, VOCAB - 2)


@st.composite
def pinned_requests(draw: st.DrawFn, uid: int) -> Request:
    length, count = draw(st.sampled_from([2, 4, 8])), draw(st.integers(1, 14))
    places = draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count))
    fields: dict[str, Any] = {
        "block_length": length,
        "max_tokens": count,
        "min_tokens": draw(st.integers(0, count)),
        "ignore_eos": draw(st.booleans()),
        "eos_ids": draw(st.sampled_from([None, (1, 2, 3, 4, 5)])),
        "pinned": tuple((place, draw(TOKENS)) for place in places),
    }
    if draw(st.booleans()):
        fields["denoise_steps"] = draw(st.integers(1, length))
    else:
        fields["threshold"] = draw(st.sampled_from([0.2, 0.9]))
    prompt = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=11))
    return request(uid, prompt, **fields)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from(["prompt_end", "zero"]), st.booleans())
def test_requests_with_pins_follow_the_definition(
    data: st.DataObject, anchor: str, truncates: bool
) -> None:
    model = HashModel(info(block_anchor=anchor))
    wanted = [data.draw(pinned_requests(uid)) for uid in range(data.draw(st.integers(1, 4)))]
    config = EngineConfig(max_slots=2, prefill_token_budget=7, truncate_last_block=truncates)
    results = run(Engine(model, config), wanted)
    for one in wanted:
        output, steps = decode_alone(model, one, truncates)
        got = ids(results[one.uid])
        assert got == output
        used = [block.denoise_steps for block in results[one.uid]]
        # A preview without open places is the one that finishes a block of pins only.
        assert used[:-1] == [max(step, 1) for step in steps[: len(used) - 1]]
        log_probs = [value for block in results[one.uid] for value in block.log_probs]
        for place, token in one.pinned:
            assert place >= len(got) or (got[place], log_probs[place]) == (token, 0.0)


@pytest.mark.parametrize("editing", [False, True])
def test_edited_blocks_keep_their_pins(editing: bool) -> None:
    rules: dict[str, Any] = {"threshold": 0.4}
    if editing:
        rules |= {"editing_threshold": 0.0, "max_post_steps": 4}
    pins = {1: 7, 2: 8, 6: 9, 7: 3, 8: 4, 9: 5, 10: 6}
    model = HashModel(info(**EVERY))
    expected = decode(model, [5, 6, 7], 4, pins, **rules)
    fields = {"max_tokens": len(expected), "ignore_eos": True, "pinned": tuple(pins.items())}
    wanted = [request(uid, [5, 6, 7], **fields, **rules) for uid in range(2)]
    results = run(Engine(model, EngineConfig(max_slots=2, max_context=64)), wanted)
    assert ids(results[0]) == ids(results[1]) == expected
    assert {place: expected[place] for place in pins} == pins


def test_an_end_token_counts_wherever_it_comes_from() -> None:
    def output(**fields: Any) -> tuple[list[int], FinishReason | None]:
        engine = Engine(ScriptModel([1, 1, 1, 7, 7, EOS, 7, 7, 7, 7, 7]))
        blocks = run(engine, [request(max_tokens=8, threshold=0.5, **fields)])[1]
        return ids(blocks), blocks[-1].finish_reason

    stop, length = FinishReason.STOP, FinishReason.LENGTH
    # pinned: ends like any other
    assert output(pinned=((1, EOS),)) == ([7, EOS], stop)
    # decided before a pin: the pin is never reached ...
    assert output(pinned=((5, 9),)) == ([7, 7, EOS], stop)
    # ... unless no end token may be decided or may end
    kept, *_ = output(pinned=((5, 9),), min_tokens=6)
    assert EOS not in kept[:6] and kept[5] == 9
    assert output(pinned=((5, 9),), ignore_eos=True) == ([7, 7, EOS, 7, 7, 9, 7, 7], length)
    # min_tokens holds for a pinned end token too
    assert output(pinned=((1, EOS), (6, EOS)), min_tokens=6)[0][1:7:5] == [EOS, EOS]


def test_a_cancelled_block_hands_out_its_leading_pins() -> None:
    engine = Engine(ScriptModel([7], lambda position: 0.5))
    engine.add_request(request(max_tokens=8, pinned=((0, 4), (1, 5), (3, 6))))
    engine.cancel(1)
    assert engine.step()[0].token_ids == (4, 5)


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"pinned": ((8, 1),)}, ["place: 8", "0 to 7"]),
        ({"pinned": ((-1, 1),)}, ["place: -1", "0 to 7"]),
        ({"pinned": ((2, 1), (2, 3))}, ["place 2", "twice"]),
        ({"pinned": ((2, VOCAB),)}, ["place 2", str(VOCAB), f"0 to {VOCAB - 1}"]),
        ({"pinned": ((2, MASK),)}, ["place 2", str(MASK), "mask token"]),
        ({"pinned": ((2, 1),), "mode": Mode.AUTOREGRESSIVE}, ["autoregressive"]),
    ],
)
def test_refusals(fields: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        Engine(HashModel()).validate(request(**fields))
    text = str(caught.value)
    assert text.startswith("pinned: ") and "\n" not in text and all(p in text for p in parts)


def test_models_that_move_tokens_refuse_pins_with_editing() -> None:
    engine = Engine(HashModel(info(**EDITS)))
    engine.validate(request(pinned=((2, 1),)))
    with pytest.raises(UnsupportedError, match="pinned: .*editing_threshold"):
        engine.validate(request(pinned=((2, 1),), editing_threshold=0.5))
    Engine(HashModel(info(**EVERY))).validate(request(pinned=((2, 1),), editing_threshold=0.5))
