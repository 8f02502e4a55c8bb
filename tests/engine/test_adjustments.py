"""Penalties, biases and ramps in the engine against models that apply them themselves.

Requests run beside others, with kept prefixes and so few pages that some lose theirs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockdiff.core import Mode, Ramp, Request
from blockdiff.engine import Engine, EngineConfig
from blockdiff.scheduler.token_pairs import PAIR, count_in

from .adjusted_models import AdjustedModel, plain
from .edit_models import DELETE, EDITS, SPLIT, EditModel
from .fakes import EOS, MASK, FakeModel, HashModel, ScriptModel, ids, info, request, run
from .test_algorithms import EVERY

WORDS = st.integers(0, 35)
WAYS: dict[str, tuple[Callable[[], FakeModel], dict[str, Any]]] = {
    "blocks": (HashModel, {"threshold": 0.4}),
    "grid": (lambda: HashModel(info(block_anchor="zero")), {"denoise_steps": 2}),
    "drawn": (HashModel, {"threshold": 0.4, "temperature": 0.8, "top_p": 0.9, "min_p": 0.05}),
    "entropy": (lambda: HashModel(info(**EVERY)), {"algorithm": "entropy_bounded"}),
    "edited": (
        lambda: HashModel(info(**EVERY)),
        {"threshold": 0.4, "editing_threshold": 0.2, "max_post_steps": 3},
    ),
    "moved": (
        lambda: EditModel(2.0, 3),
        {"threshold": 0.4, "editing_threshold": 0.2, "max_post_steps": 3},
    ),
    "single": (HashModel, {"mode": Mode.AUTOREGRESSIVE, "temperature": 0.7}),
}


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    few = st.sampled_from([0.0, 0.0, 0.5, -0.7, 1.5])
    bias = st.dictionaries(WORDS, st.sampled_from([-50.0, -1.0, 2.0, 4.5]), max_size=4)
    ramp = st.builds(
        Ramp,
        start=st.integers(0, 6),
        slope=st.sampled_from([0.5, 2.0]),
        most=st.sampled_from([0.7, 4.0]),
        token_ids=st.sampled_from([None, (3, 4), (5,)]),
        is_once=st.booleans(),
    )
    return {
        "repetition_penalty": draw(st.sampled_from([1.0, 1.3, 3.0, 0.6])),
        "presence_penalty": draw(few),
        "frequency_penalty": draw(few),
        "logit_bias": tuple(draw(bias).items()),
        "ramps": tuple(draw(st.lists(ramp, max_size=2, unique_by=lambda r: r.token_ids))),
    }


def engine(model: FakeModel, **settings: int) -> Engine:
    config = {"max_slots": 3, "max_context": 64, "prefill_token_budget": 8, "page_length": 8}
    return Engine(model, EngineConfig(check_invariants=True, **{**config, **settings}))


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_changes_are_those_of_a_model_that_makes_them(way: str, data: st.DataObject) -> None:
    build, fields = WAYS[way]
    prompt = data.draw(st.lists(WORDS, min_size=1, max_size=11))
    wanted = [
        request(
            uid,
            [*prompt, uid],
            max_tokens=data.draw(st.integers(1, 18)),
            min_tokens=data.draw(st.sampled_from([0, 1])),
            **(data.draw(changes()) if uid else {}),
            **fields,
        )
        for uid in range(4)
    ]
    together = engine(build(), kv_cache_bytes=8 * 9)
    results = run(together, wanted)
    for one in wanted:
        alone = run(engine(AdjustedModel(build(), one), prefix_cache=False), [plain(one)])[one.uid]
        assert ids(results[one.uid]) == ids(alone)
        log_probs = [value for block in results[one.uid] for value in block.log_probs]
        expected = [value for block in alone for value in block.log_probs]
        np.testing.assert_allclose(log_probs, expected, atol=1e-5)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 20), max_size=9), max_size=5))
def test_counts_are_those_of_all_tokens(parts: list[list[int]]) -> None:
    pairs = np.zeros(0, PAIR)
    for part in parts:
        pairs = count_in(pairs, np.array(part, np.int64))
    flat = [token for part in parts for token in part]
    assert dict(zip(pairs["key"].tolist(), pairs["count"].tolist(), strict=True)) == {
        token: flat.count(token) for token in sorted(set(flat))
    }
    assert pairs["key"].tolist() == sorted(set(flat))


def test_counts_outlive_a_loss_of_pages() -> None:
    """The tokens of earlier blocks still count after the request had to be written again."""
    wanted = [
        request(uid, [uid] * 9, max_tokens=24, ignore_eos=True, presence_penalty=2.0)
        for uid in range(3)
    ]
    alone = {one.uid: ids(run(engine(HashModel()), [one])[one.uid]) for one in wanted}
    short = engine(HashModel(), kv_cache_bytes=8 * 8)
    results = run(short, wanted)
    assert short.counters.suspensions > 0
    assert {uid: ids(blocks) for uid, blocks in results.items()} == alone


def test_a_ramp_ends_the_answer() -> None:
    """The script never says the end token; the ramp makes it more likely from some place on."""
    model = ScriptModel([7], lambda position: 0.9)

    def length(*ramps: Ramp) -> int:
        (blocks,) = run(engine(model), [request(max_tokens=30, ramps=ramps)]).values()
        return len(ids(blocks))

    assert length() == 30
    # ln(0.9 / (0.1 / 39)) is 5.9
    assert length(Ramp(start=4, slope=1.0, most=100.0)) == 11
    assert length(Ramp(start=4, slope=1.0, most=5.0)) == 30


def test_a_bias_forces_and_bars() -> None:
    model = ScriptModel([7], lambda position: 0.9)
    results = run(
        engine(model),
        [
            request(1, max_tokens=5, logit_bias=((9, 100.0),)),
            request(2, max_tokens=5, logit_bias=((7, -100.0),)),
            request(3, max_tokens=5),
        ],
    )
    assert ids(results[1]) == [9] * 5
    assert 7 not in ids(results[2])
    assert ids(results[3]) == [7] * 5


def refusal(wanted: Request, model: FakeModel | None = None) -> str:
    with pytest.raises(Exception) as caught:
        Engine(model or HashModel()).validate(wanted)
    assert "\n" not in str(caught.value)
    return str(caught.value)


RAMP = {"start": 1, "slope": 1.0, "most": 1.0}


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"min_p": 1.5}, ["min_p", "1.5", "0.0 to 1.0"]),
        ({"min_p": float("nan")}, ["min_p", "nan"]),
        ({"repetition_penalty": 0.0}, ["repetition_penalty", "above 0.0"]),
        ({"repetition_penalty": 101.0}, ["repetition_penalty", "101.0"]),
        ({"presence_penalty": -2.1}, ["presence_penalty", "-2.1", "-2.0 to 2.0"]),
        ({"frequency_penalty": 3.0}, ["frequency_penalty", "3.0"]),
        ({"logit_bias": ((40, 1.0),)}, ["logit_bias", "40", "0 to 39"]),
        ({"logit_bias": ((MASK, 1.0),)}, ["logit_bias", "mask token"]),
        ({"logit_bias": ((1, 101.0),)}, ["logit_bias", "token 1", "101.0"]),
        ({"logit_bias": ((1, 1.0), (1, 2.0))}, ["logit_bias", "token 1", "twice"]),
        ({"logit_bias": tuple((n, 0.0) for n in range(1025))}, ["logit_bias", "1025", "1024"]),
        ({"ramps": (Ramp(-1, 1.0, 1.0),)}, ["ramps: start", "-1"]),
        ({"ramps": (Ramp(0, -1.0, 1.0),)}, ["ramps: slope", "-1.0"]),
        ({"ramps": (Ramp(0, 1.0, float("inf")),)}, ["ramps: most", "inf"]),
        ({"ramps": (Ramp(**RAMP, token_ids=(40,)),)}, ["ramps", "40"]),
        ({"ramps": (Ramp(**RAMP), Ramp(**RAMP, token_ids=(EOS,)))}, ["ramps", "two"]),
        ({"ramps": (Ramp(**RAMP),), "ignore_eos": True}, ["ramps", "ignore_eos"]),
        ({"ramps": (Ramp(**RAMP),), "eos_ids": ()}, ["ramps", "eos_ids"]),
        ({"num_top_log_probs": 21}, ["num_top_log_probs", "21", "0 to 20"]),
    ],
    ids=str,
)
def test_refusals(fields: dict[str, Any], parts: list[str]) -> None:
    text = refusal(request(**fields))
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("token", [DELETE, SPLIT])
def test_control_tokens_have_no_bias(token: int) -> None:
    text = refusal(request(logit_bias=((token, 1.0),)), HashModel(info(**EDITS)))
    assert "control token" in text
