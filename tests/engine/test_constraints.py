"""Outputs under constraints: always what the guide says, never with a bad string."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.core import BlockResult, FinishReason, Guide, GuideKind, Mode, Thinking
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.models.base import BlockDiffusionModel
from tests.models.families import FAMILIES, make_model

from .byte_tokens import ByteTokens
from .fakes import HashModel, ids, info, request, run
from .host_recorder import HostRecorder

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["cd", "ef"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)
SIZE = 64
FACTS = {"vocab_size": SIZE, "mask_token_id": 63, "eos_token_ids": (62,)}
THINK = (60, 61)


def guide(kind: str, text: str = "", think: str = "closed") -> Guide:
    return Guide(GuideKind(kind), text, think)


def tokens_of(model: BlockDiffusionModel, think: tuple[int, int] | None = None) -> ByteTokens:
    facts = model.info
    control = {*facts.control_token_ids, *facts.eos_token_ids, *(think or ())}
    return ByteTokens(facts.vocab_size, control, think)


def text_of(model: BlockDiffusionModel, blocks: list[BlockResult]) -> str:
    return tokens_of(model).decode(ids(blocks))


def decoded(
    model: BlockDiffusionModel, wanted: list[Any], slots: int = 2, **fields: Any
) -> list[list[BlockResult]]:
    config = EngineConfig(max_slots=slots, max_context=fields.pop("max_context", 128), **fields)
    return list(run(Engine(model, config, tokens_of(model)), wanted).values())


def hash_model(**facts: Any) -> HashModel:
    return HashModel(info(**{**FACTS, **facts}))


RULES: dict[str, dict[str, Any]] = {
    "threshold": {"threshold": 0.5},
    "all at once": {"threshold": 0.0},
    "steps": {"denoise_steps": 2},
    "sequential": {"algorithm": "sequential"},
    "entropy": {"algorithm": "entropy_bounded", "entropy_bound": 2.0},
    "sampled": {"temperature": 1.5, "top_k": 20, "threshold": 0.3, "seed": 3},
    "editing": {"editing_threshold": 0.3, "threshold": 0.4},
    "autoregressive": {"mode": Mode.AUTOREGRESSIVE},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [2, 4, 8])
def test_every_way_of_decoding_gives_what_the_guide_says(rule: str, length: int) -> None:
    model = hash_model(
        algorithms=("low_confidence", "sequential", "entropy_bounded"), supports_editing=True
    )
    own = {**RULES[rule], "block_length": length}
    if rule == "autoregressive":
        own = RULES[rule]
    wanted = [
        request(1, max_tokens=60, guide=guide("regex", "[ab]{3,9}(cd|e+)*f"), **own),
        request(2, max_tokens=60, guide=guide("json_schema", SCHEMA), **own),
        request(3, max_tokens=24, bad_strings=("a", "é", "12"), **own),
        request(4, max_tokens=24, **own),
    ]
    found = decoded(model, wanted)
    texts = [text_of(model, blocks) for blocks in found]
    last = [blocks[-1] for blocks in found]
    check(last[0], texts[0], lambda text: re.fullmatch("[ab]{3,9}(cd|e+)*f", text))
    check(last[1], texts[1], lambda text: isinstance(json.loads(text)["a"], int))
    assert not any(bad in texts[2] for bad in ("a", "é", "12"))
    # others in the same rounds are what they are alone
    (alone,) = decoded(model, [wanted[3]])
    assert ids(alone) == ids(found[3])


def check(last: BlockResult, text: str, is_whole: Any) -> None:
    assert last.error is None
    if last.finish_reason is FinishReason.LENGTH:
        assert last.stop_reason in ("guide_incomplete", "")
        assert last.stop_reason or is_whole(text)
    else:
        assert is_whole(text), text


@pytest.mark.parametrize("family", FAMILIES)
def test_random_weights_of_every_family_obey(family: str, tmp_path: Path) -> None:
    model = make_model(family, tmp_path)
    own: dict[str, Any] = {"threshold": 0.3}
    if model.info.uniform is not None:
        own = {"denoise_steps": 3, "entropy_bound": 0.7}
    wanted = [
        request(1, max_tokens=12, guide=guide("regex", "[0-9]{9}"), seed=1, **own),
        request(2, max_tokens=12, guide=guide("regex", "[0-9,]*:"), seed=2, **own),
        request(3, max_tokens=12, bad_strings=("1", "{"), seed=3, **own),
    ]
    found = decoded(model, wanted, max_context=48)
    texts = [text_of(model, blocks) for blocks in found]
    assert re.fullmatch("[0-9]{9}", texts[0]), texts[0]
    check(found[1][-1], texts[1], lambda text: re.fullmatch("[0-9,]*:", text))
    assert "1" not in texts[2] and "{" not in texts[2]
    for blocks in found:
        kept = [value for block in blocks for value in block.log_probs]
        assert np.isfinite(kept).all() and len(kept) == len(ids(blocks))


@given(st.data())
@settings(deadline=None, max_examples=25)
def test_output_is_always_in_the_language(data: st.DataObject) -> None:
    atoms = st.sampled_from(["a", "ab", "[0-9]", "(é|b)", "c", '"', "12"])
    pattern = "".join(
        atom + data.draw(st.sampled_from(["", "*", "?", "{2,3}", "+"]))
        for atom in (f"({a})" for a in data.draw(st.lists(atoms, min_size=1, max_size=5)))
    )
    model = hash_model()
    prompt = data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=6))
    own = {"block_length": data.draw(st.sampled_from([2, 4, 8])), "threshold": 0.2}
    limit = data.draw(st.integers(1, 40))
    bad = tuple(data.draw(st.lists(st.sampled_from(["aa", "é", "1b", "abab"]), max_size=2)))
    wanted = request(
        1, prompt, max_tokens=limit, guide=guide("regex", pattern), bad_strings=bad, **own
    )
    engine = Engine(model, EngineConfig(max_slots=2, max_context=64), tokens_of(model))
    (blocks,) = run(engine, [wanted]).values()
    last = blocks[-1]
    if last.error is not None:
        assert bad and "no token may follow" in last.error
        return
    text = text_of(model, blocks)
    assert not any(string in text for string in bad)
    assert last.finish_reason is FinishReason.LENGTH or re.fullmatch(pattern, text)
    if last.finish_reason is FinishReason.LENGTH:
        assert (last.stop_reason == "") == bool(re.fullmatch(pattern, text))


def test_a_finished_guide_ends_the_request_and_fixed_text_takes_no_previews() -> None:
    model = hash_model()
    wanted = request(1, max_tokens=60, guide=guide("regex", "ababcdeababcde"), ignore_eos=True)
    ((block, *more),) = decoded(model, [wanted])
    last = more[-1] if more else block
    assert text_of(model, [block, *more]) == "ababcdeababcde"
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, "guide_complete")
    assert last.forwards is not None and last.forwards.preview <= 3
    assert set(block.log_probs) == {0.0}


def test_space_between_parts_of_json_does_not_run_away() -> None:
    model = hash_model()
    many = [
        request(uid, [uid], max_tokens=90, guide=guide("json_schema", SCHEMA))
        for uid in range(1, 9)
    ]
    for blocks in decoded(model, many):
        assert not re.search(r"\s\n| {65}", text_of(model, blocks))


def test_a_guide_that_max_tokens_cuts_says_so() -> None:
    model = hash_model()
    ((last,),) = decoded(model, [request(1, max_tokens=3, guide=guide("regex", "[ab]{50}"))])
    assert (last.finish_reason, last.stop_reason) == (FinishReason.LENGTH, "guide_incomplete")


def test_min_tokens_hold_where_the_guide_lets_them() -> None:
    model = hash_model()
    own = {"max_tokens": 30, "min_tokens": 20}
    open_ended = request(1, guide=guide("regex", "[0-9]+"), **own)
    short = request(2, guide=guide("regex", "[0-9]{3}"), **own)
    longer, shorter = decoded(model, [open_ended, short])
    assert len(ids(longer)) >= 20
    assert re.fullmatch("[0-9]{3}", text_of(model, shorter))


def test_stop_strings_end_before_the_guide() -> None:
    model = hash_model()
    wanted = request(1, max_tokens=60, guide=guide("regex", "abcde[0-9]{8}"), stop_strings=("cd",))
    (blocks,) = decoded(model, [wanted])
    assert (blocks[-1].finish_reason, blocks[-1].stop_reason) == (FinishReason.STOP, "cd")


def test_the_guide_begins_after_thinking() -> None:
    model = hash_model()
    tokens = tokens_of(model, THINK)
    thoughts = ((0, 20), (1, 21), (2, THINK[1]))
    for think, pins in (
        ("open", thoughts),
        ("unknown", ((0, THINK[0]), *((p + 1, t) for p, t in thoughts))),
    ):
        wanted = request(
            1, max_tokens=40, guide=guide("regex", "[0-9]{5}", think), pinned=pins, threshold=0.3
        )
        engine = Engine(model, EngineConfig(max_slots=1, max_context=64), tokens)
        (blocks,) = run(engine, [wanted]).values()
        answer = ids(blocks)[len(pins) :]
        assert re.fullmatch(r"\n{0,2}[0-9]{5}", tokens.decode(answer)), tokens.decode(answer)
    # thinking is never forced on an answer that may begin without it
    wanted = request(
        2, max_tokens=40, guide=guide("regex", "[0-9]{5}", "unknown"), pinned=((0, 8),)
    )
    (blocks,) = run(Engine(model, EngineConfig(max_context=64), tokens), [wanted]).values()
    assert re.fullmatch("[0-9]{5}", tokens.decode(ids(blocks)))


class MarkedTokens(ByteTokens):
    """Control tokens of thinking have the texts of think marks."""

    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes:
        marks = dict(zip(THINK, (b"<think>", b"</think>"), strict=True))
        return marks.get(token_id) or super().token_bytes(token_id, skip_special)


@pytest.mark.parametrize("rules", [{"threshold": 0.3}, {"threshold": 0.0}, {"denoise_steps": 2}])
def test_the_guide_begins_where_the_budget_of_thinking_ends(rules: dict[str, Any]) -> None:
    model = hash_model()
    tokens = MarkedTokens(SIZE, {62, 63, *THINK}, THINK)
    for budget in (0, 1, 3, 4, 5, 9):
        own = Thinking(budget, (THINK[1],), is_open=True)
        wanted = request(
            budget,
            max_tokens=40,
            ignore_eos=True,
            guide=guide("regex", "[0-9]{5}", "open"),
            thinking=own,
            **rules,
        )
        engine = Engine(model, EngineConfig(max_slots=1, max_context=64), tokens)
        (blocks,) = run(engine, [wanted]).values()
        assert blocks[-1].error is None
        output = ids(blocks)
        assert output.index(THINK[1]) <= budget and output.count(THINK[1]) == 1
        answer = tokens.decode(output[output.index(THINK[1]) + 1 :])
        assert re.fullmatch(r"\n{0,2}[0-9]{5}", answer), answer


@pytest.mark.parametrize("length", [2, 8])
def test_budgets_of_thinking_beside_guides_and_bad_strings(length: int) -> None:
    model = hash_model()
    tokens = tokens_of(model, THINK)
    wanted = [
        request(
            uid,
            [uid, 3],
            max_tokens=40,
            guide=guide("regex", "[0-9]{5}", "open"),
            bad_strings=("a", "b", "c", "33"),
            thinking=Thinking(6, (THINK[1],), True, "<think>", "</think>"),
            block_length=length,
            threshold=0.2,
        )
        for uid in range(12)
    ]
    for blocks in run(Engine(model, EngineConfig(max_context=64), tokens), wanted).values():
        found = ids(blocks)
        end = found.index(THINK[1])
        thoughts, answer = tokens.decode(found[:end]), tokens.decode(found[end + 1 :])
        assert end <= 6 and not any(bad in thoughts + answer for bad in ("a", "b", "c", "33"))
        assert re.fullmatch(r"\n{0,2}[0-9]{5}", answer) or blocks[-1].stop_reason == "62"


def test_control_tokens_never_satisfy_a_guide_and_end_only_complete_ones() -> None:
    model = hash_model()
    wanted = request(1, max_tokens=40, guide=guide("regex", "(?s:.{12,})"), threshold=0.0)
    (blocks,) = decoded(model, [wanted])
    found = ids(blocks)
    assert all(token not in (62, 63) for token in found[:-1])
    assert found[-1] != 62 or len(text_of(model, blocks)) >= 12
    named = request(2, guide=guide("ebnf_grammar", 'start: "a" <[62]> "b"\n'))
    ((last, *_),) = decoded(model, [named])
    assert last.error is not None and "no token may follow" in last.error


def test_pins_that_the_guide_forbids() -> None:
    model = hash_model()
    tokens = tokens_of(model)
    (letter,) = tokens.encode("f")
    with pytest.raises(RequestError, match="pinned: token .* at place 0 cannot begin"):
        decoded(model, [request(1, guide=guide("regex", "[0-9]+"), pinned=((0, letter),))])
    later = request(1, guide=guide("regex", "[0-9]+"), pinned=((5, letter),))
    (blocks,) = decoded(model, [later])
    assert "cannot follow" in (blocks[-1].error or "")
    (digit,) = tokens.encode("7")
    fine = request(1, guide=guide("regex", "[0-9]{8}"), pinned=((5, digit),), threshold=0.2)
    (blocks,) = decoded(model, [fine])
    assert ids(blocks)[5] == digit and re.fullmatch("[0-9]{8}", text_of(model, blocks))


def test_outputs_do_not_depend_on_the_batch_or_on_memory() -> None:
    model = hash_model()
    wanted = [
        request(uid, [uid, 2, 3], max_tokens=40, guide=guide("json_schema", SCHEMA), threshold=0.3)
        for uid in range(1, 6)
    ]
    together = decoded(model, wanted, slots=3, kv_cache_bytes=80, page_length=16)
    for own, blocks in zip(wanted, together, strict=True):
        (alone,) = decoded(model, [own])
        assert ids(alone) == ids(blocks)


REFUSED = {
    "not a schema": (guide("json_schema", "[1"), "not a JSON schema"),
    "a list": (guide("json_schema", "[]"), "a JSON schema is an object"),
    "nothing fits": (guide("json_schema", "false"), "not usable"),
    "empty": (guide("regex", "  "), "is empty"),
    "bad regex": (guide("regex", "(a"), "not usable"),
    "back reference": (guide("regex", r"(a)\1"), "not usable"),
    "bad grammar": (guide("ebnf_grammar", "root ::= missing"), "not usable"),
    "text with json": (guide("json", "{}"), "no meaning"),
    "too long": (guide("regex", "a" * 70_000), "65536 are allowed"),
    "many keys": (
        guide("json_schema", json.dumps({"properties": {f"k{i}": {} for i in range(4000)}})),
        "at most 3000",
    ),
    "nested": (guide("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000), "guided_decoding"),
    "deep group": (guide("regex", "(" * 20_000 + "a" + ")" * 20_000), "not usable"),
    "chain of references": (
        guide(
            "json_schema",
            json.dumps(
                {
                    "$defs": {
                        **{f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(900)},
                        "a900": {},
                    },
                    "$ref": "#/$defs/a0",
                }
            ),
        ),
        "too much time or memory",
    ),
    "growth": (
        guide(
            "ebnf_grammar",
            "start: T\nT: " + " & ".join(f"/(a|b)*a(a|b){{{i}}}/" for i in range(1, 40)),
        ),
        "too much time or memory",
    ),
    "reference loop": (guide("json_schema", '{"$ref":"#"}'), "nothing can satisfy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_guides_that_cannot_be_used(name: str) -> None:
    own, message = REFUSED[name]
    engine = Engine(hash_model(), EngineConfig(max_context=64), tokens_of(hash_model()))
    with pytest.raises(RequestError, match=message) as refusal:
        engine.validate(request(1, guide=own))
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("strings", "message"),
    [
        (("",), "empty"),
        (tuple(f"w{i}" for i in range(10_000)), "at most 32"),
        (("a" * 1_000_000,), "at most 1024"),
        (("\ufffd",), "U\\+FFFD"),
        (("\ud800",), "not valid Unicode"),
    ],
)
def test_bad_strings_that_cannot_be_kept_out(strings: tuple[str, ...], message: str) -> None:
    engine = Engine(hash_model(), EngineConfig(max_context=64), tokens_of(hash_model()))
    with pytest.raises(RequestError, match=f"bad_strings: .*{message}"):
        engine.validate(request(1, bad_strings=strings))


def test_what_has_no_constraints() -> None:
    own = {"guide": guide("json")}
    with pytest.raises(UnsupportedError, match="bytes of this model's tokens are not known"):
        Engine(hash_model(), EngineConfig(max_context=64)).validate(request(1, **own))
    facts = {"supports_editing": True, "delete_token_id": 59, "split_token_id": 58}
    model = hash_model(**facts)
    engine = Engine(model, EngineConfig(max_context=64), tokens_of(model))
    with pytest.raises(UnsupportedError, match="moves tokens"):
        engine.validate(request(1, editing_threshold=0.5, **own))


def test_when_no_token_is_left() -> None:
    model = hash_model()
    every = tuple(bytes([byte]).decode() for byte in b'{}":,[]0123456789-abcdef \n')
    tokens = tokens_of(model)
    own = request(1, guide=guide("regex", "[0-9a-f]{30}"), bad_strings=every[:24])
    engine = Engine(model, EngineConfig(max_context=64), tokens)
    (blocks,) = run(engine, [own]).values()
    assert "no token may follow" in (blocks[-1].error or "")


def test_canvases_that_begin_again_keep_what_is_certified(tmp_path: Path) -> None:
    model = make_model("diffusion_gemma", tmp_path)
    own: dict[str, Any] = {"denoise_steps": 3, "entropy_bound": 0.7, "wants_step_map": True}
    wanted = request(1, max_tokens=12, guide=guide("regex", "[0-9ab]{12}"), seed=1, **own)
    (blocks,) = decoded(model, [wanted], max_context=48)
    assert re.fullmatch("[0-9ab]{12}", text_of(model, blocks))
    for block in blocks:
        # a step that ends a canvas settles a run of places
        assert list(block.settled_steps) == sorted(block.settled_steps)
        assert block.settled_steps[-1] == block.denoise_steps - 1
        assert all(value < 0 for value in block.log_probs)
    assert len({step for block in blocks for step in block.settled_steps}) > 1


@pytest.mark.parametrize("family", ["llada2", "diffusion_gemma"])
def test_captured_rounds_and_kernels_change_nothing(family: str, tmp_path: Path) -> None:
    model, found = make_model(family, tmp_path), []
    own: dict[str, Any] = {"threshold": 0.3}
    if model.info.uniform is not None:
        own = {"denoise_steps": 3, "entropy_bound": 0.7}
    for recorder in (None, HostRecorder()):
        config = EngineConfig(max_slots=2, max_context=48, graph_blocks=(1, 2))
        engine = Engine(model, config, tokens_of(model), recorder=recorder)
        engine.warm_up()
        wanted = [
            request(1, max_tokens=12, guide=guide("regex", "[0-9]{5}a*f"), seed=1, **own),
            request(2, max_tokens=12, seed=2, **own),
            request(3, max_tokens=12, bad_strings=("1", "{"), seed=3, **own),
        ]
        found.append([ids(blocks) for blocks in run(engine, wanted).values()])
    assert engine.step_counts.replayed > 0
    assert found[0] == found[1]
