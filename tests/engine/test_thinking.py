"""Budgets of thinking: the end of a think block stands exactly where the budget says."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockdiff.core import BlockResult, FinishReason, Mode, Request, Thinking
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.text import ThinkTokens

from .edit_models import EDITS
from .fakes import FakeModel, HashModel, LetterCodec, ScriptModel, ids, info, request, run

# Letters: "a" opens a think block, "b" or "bc" ends it.
START, EOS = 0, 6
FACTS: dict[str, Any] = {"vocab_size": 8, "mask_token_id": 7, "eos_token_ids": (EOS,)}


def thinking(budget: int, end: str = "b", is_open: bool = True) -> Thinking:
    return Thinking(budget, tuple(map(LetterCodec.letters.index, end)), is_open, "a", end)


def engine(model: FakeModel, **fields: Any) -> Engine:
    config = EngineConfig(max_slots=3, max_context=64, check_invariants=True, **fields)
    return Engine(model, config, LetterCodec())


def length(tokens: list[int], own: Thinking) -> int:
    return ThinkTokens(LetterCodec(), own.start, own.end, own.is_open).push(tokens, final=True)


def expected(script: list[int], prompt: int, wanted: Request) -> list[int]:
    """What a model that says ``script`` whatever it sees has to answer."""
    own = wanted.thinking
    assert own is not None
    said = [script[p % len(script)] for p in range(prompt, prompt + wanted.max_tokens)]
    first = 0 if own.is_open else 1 if said[0] == START else None
    if first is not None:
        size, limit = len(own.end_ids), first + own.budget
        ends = [p for p in range(first, len(said)) if tuple(said[p : p + size]) == own.end_ids]
        if not ends or ends[0] + size > limit:
            said[limit : limit + size] = own.end_ids[: max(len(said) - limit, 0)]
    return said[: said.index(EOS) + 1] if EOS in said else said


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[float], Request]:
    script = draw(st.lists(st.sampled_from([0, 1, 1, 2, 3, 4, EOS]), min_size=4, max_size=40))
    sure = draw(st.lists(st.sampled_from([0.5, 0.6, 0.7, 0.8, 0.95]), min_size=1, max_size=9))
    own = thinking(
        draw(st.integers(0, 12)), draw(st.sampled_from(["b", "bc"])), draw(st.booleans())
    )
    rule = draw(st.sampled_from([{"threshold": 0.3}, {"threshold": 0.9}, {"denoise_steps": 2}]))
    fields = {"block_length": draw(st.sampled_from([2, 4, 8])), **rule}
    prompt = [5] * draw(st.integers(1, 5))
    return script, sure, request(1, prompt, max_tokens=20, thinking=own, **fields)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), st.sampled_from(["prompt_end", "zero"]), st.booleans())
def test_the_end_is_where_the_budget_says(
    case: tuple[list[int], list[float], Request], anchor: str, truncates: bool
) -> None:
    script, sure, wanted = case
    model = ScriptModel(script, lambda p: sure[p % len(sure)], info(block_anchor=anchor, **FACTS))
    blocks = run(engine(model, truncate_last_block=truncates), [wanted])[1]
    assert ids(blocks) == expected(script, len(wanted.input_ids), wanted)
    # A block is opened again at most twice: where the end belongs, and where it did not.
    assert max(b.denoise_steps for b in blocks) <= 3 * (wanted.decoding.block_length or 4)


def requests(rules: dict[str, Any]) -> list[Request]:
    budgets = [0, 1, 3, 5, 7, 11, 40]
    return [
        request(uid, [uid % 5, 2, 3], max_tokens=18, ignore_eos=True, **rules, thinking=own)
        for uid, own in enumerate(thinking(b, is_open=o) for b in budgets for o in (True, False))
    ]


@pytest.mark.parametrize(
    "rules",
    [{"threshold": 0.3}, {"denoise_steps": 3}, {"threshold": 0.5, "temperature": 1.0, "seed": 3}],
)
def test_budgets_hold_whatever_else_runs(rules: dict[str, Any]) -> None:
    def results(**fields: Any) -> dict[int, list[BlockResult]]:
        return run(engine(HashModel(info(**FACTS)), **fields), requests(rules))

    together, counted = results(), []
    for wanted in requests(rules):
        alone = run(engine(HashModel(info(**FACTS))), [wanted])[wanted.uid]
        assert together[wanted.uid] == alone
        own = wanted.thinking
        assert own is not None
        counted.append((length(ids(alone), own), own.budget))
    assert all(count <= budget for count, budget in counted)
    # Some blocks are cut, and some models end theirs before.
    assert any(count == budget for count, budget in counted[2:])
    assert any(0 < count < budget for count, budget in counted)
    short = engine(HashModel(info(**FACTS)), kv_cache_bytes=8 * 8, prefix_cache=False)
    suspended = run(short, requests(rules))
    assert short.counters.suspensions
    for uid, blocks in suspended.items():
        assert ids(blocks) == ids(together[uid])


def test_a_budget_that_is_not_reached_changes_nothing() -> None:
    script = [5, 5, 5, 2, 2, 2, 1, 3, 3, 3]
    sure = {3: 0.4, 4: 0.4, 5: 0.4, 6: 0.5}
    model = ScriptModel(script, lambda p: sure.get(p, 0.99), info(**FACTS))
    fields = {"max_tokens": 7, "threshold": 0.9}
    # the end would be given in the block in which the model ends, behind its own end
    for budget in (3, 4, 5, 6, 7, 20):
        wanted = request(1, [5, 5, 5], thinking=thinking(budget), block_length=8, **fields)
        assert ids(run(engine(model), [wanted])[1]) == [2, 2, 2, 1, 3, 3, 3]
    wanted = request(1, [5, 5, 5], thinking=thinking(2), block_length=8, **fields)
    assert ids(run(engine(model), [wanted])[1]) == [2, 2, 1, 1, 3, 3, 3]


def test_stop_strings_and_ends_see_only_what_stays() -> None:
    # "b" at place 6 would be given, but the model ends at place 1: no "b" behind it
    model = ScriptModel([5, 2, 1, 3, 3, 3, 3, 3, 3], lambda p: 0.5 + p / 100, info(**FACTS))
    fields = {"block_length": 8, "max_tokens": 8, "threshold": 0.9, "stop_strings": ("db",)}
    blocks = run(engine(model), [request(1, [5], thinking=thinking(6), **fields)])[1]
    assert ids(blocks) == [2, 1, 3, 3, 3, 3, 3, 3]
    assert blocks[-1].finish_reason is FinishReason.LENGTH
    blocks = run(engine(model), [request(1, [5], thinking=thinking(1), **fields)])[1]
    assert ids(blocks)[:3] == [2, 1, 3]


@pytest.mark.parametrize(
    ("fields", "kind", "part"),
    [
        ({"thinking": thinking(-1)}, RequestError, "-1"),
        ({"mode": Mode.AUTOREGRESSIVE}, UnsupportedError, "autoregressive"),
        ({"pinned": ((1, 2),)}, RequestError, "pinned"),
        ({"editing_threshold": 0.5}, UnsupportedError, "editing_threshold"),
        ({"thinking": Thinking(1, (7,))}, RequestError, "never output"),
        ({"thinking": Thinking(1, ())}, RequestError, "end_ids"),
    ],
)
def test_refusals(fields: dict[str, Any], kind: type[Exception], part: str) -> None:
    built = Engine(HashModel(info(**{**EDITS, **FACTS})), tokenizer=LetterCodec())
    with pytest.raises(kind, match=f"thinking.*{part}"):
        built.validate(request(**{"thinking": thinking(3), **fields}))


def test_a_budget_needs_a_tokenizer() -> None:
    with pytest.raises(UnsupportedError, match="thinking_budget"):
        Engine(HashModel(info(**FACTS))).validate(request(thinking=thinking(3)))
