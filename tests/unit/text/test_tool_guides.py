"""What a guide allows is what the parser of its form reads back."""

import json
import random
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.text.tool_calls import FORMS, ToolCallParser, offered_types
from blockdiff.text.tool_guides import tool_guide

SCHEMA: dict[str, Any] = {
    "properties": {
        "city": {"type": "string"},
        "n": {"type": "integer"},
        "unit": {"enum": ["celsius", "kelvin"]},
        "either": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "points": {"type": "array", "items": {"$ref": "#/$defs/point"}},
    },
    "required": ["city", "unit"],
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}}},
}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "g"}},
]
BYTES = LLTokenizer("byte")
ARGUMENTS = {"city": 'a "b"', "n": -3, "unit": "kelvin", "either": None, "points": [{"x": 1.5}, {}]}


def matcher(form: str, named: str | None = None) -> LLMatcher:
    guide = tool_guide(TOOLS, named, form, lambda token: None)
    made = LLMatcher(BYTES, LLMatcher.grammar_from_lark(guide.text))
    assert not made.is_error(), made.get_error()
    return made


def written(form: str, arguments: dict[str, Any]) -> str:
    """A call of ``f`` as a model of this form writes it."""
    if form in ("hermes", "llada2"):
        body = json.dumps({"name": "f", "arguments": arguments})
        return f"<tool_call>\n{body}\n</tool_call>"
    if form == "qwen_xml":
        values = {k: v if isinstance(v, str) else json.dumps(v) for k, v in arguments.items()}
        parts = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items()]
        return f"<tool_call>\n<function=f>\n{''.join(parts)}</function>\n</tool_call>"
    return f"<|tool_call>call:f{bare(arguments)}<tool_call|>"


def bare(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{bare(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(bare, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def parsed(form: str, text: str) -> tuple[str, list[Any], bool]:
    found = ToolCallParser(FORMS[form], offered_types(TOOLS)).push(text, final=True)
    calls = [(call.name, json.loads(call.arguments)) for call in found.calls]
    return found.text, calls, found.has_malformed


def end_of(walk: LLMatcher, text: str) -> bool:
    """Whether the whole text may be written and the answer may end behind it."""
    return walk.try_consume_tokens(list(text.encode())) == len(text.encode()) and (
        walk.is_accepting()
    )


@pytest.mark.parametrize("form", FORMS)
def test_usual_calls_are_allowed_and_read_back(form: str) -> None:
    for left_out in ({"n", "either"}, {"n"}, {"points"}, set()):
        arguments = {key: value for key, value in ARGUMENTS.items() if key not in left_out}
        text = written(form, arguments)
        assert end_of(matcher(form), text)
        assert parsed(form, text) == ("", [("f", arguments)], False)
    between = "" if form == "gemma" else "\n"
    assert end_of(matcher(form), text + between + text)
    assert not end_of(matcher(form, "f"), text + between + text)
    assert end_of(matcher(form, "f"), text) and not end_of(matcher(form, "g"), text)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_call_is_not_allowed(form: str) -> None:
    good = {"city": "x", "unit": "kelvin"}
    for bad in ({"city": "x"}, {**good, "unit": "far"}, {**good, "n": "?"}, {**good, "more": 1}):
        assert not end_of(matcher(form), written(form, bad))
    for text in ("", "hi", written(form, good)[:-1], "x" + written(form, good)):
        assert not end_of(matcher(form), text)


def drawn(draw: random.Random, text: bytes, allowed: list[int]) -> int:
    """One of ``allowed``, often one that goes on with a marker, so that values come to an end."""
    if draw.random() < 0.8:
        for mark in (b'<|"|>', b"\n</parameter>\n", b'"', b"}", b"]"):
            begun = next(k for k in range(len(mark) - 1, -1, -1) if text.endswith(mark[:k]))
            if mark[begun] in allowed and (begun or draw.random() < 0.3):
                return mark[begun]
    plain = [i for i in allowed if 32 <= i < 127]
    return draw.choice(plain or allowed)


@pytest.mark.parametrize("form", FORMS)
def test_whatever_is_allowed_is_read_back(form: str) -> None:
    finished = 0
    for seed in range(12):
        draw, walk, text = random.Random(seed), matcher(form), b""
        while not walk.is_stopped() and len(text) < 400:
            bits = walk.compute_bitmask()
            allowed = [i for i in range(256) if bits[i // 8] >> (i % 8) & 1]
            if walk.is_accepting() and (not allowed or draw.random() < 0.5):
                break
            token = drawn(draw, text, allowed)
            assert walk.consume_token(token)
            text += bytes([token])
        if walk.is_accepting():
            rest, calls, has_malformed = parsed(form, text.decode("utf-8", errors="ignore"))
            assert (rest, has_malformed) == ("", False) and calls
            finished += 1
    assert finished > 3


def test_a_marker_that_is_a_token_is_named_by_its_id() -> None:
    ids = {"<tool_call>": 7, "</tool_call>": 8, '<|"|>': 9}
    for form in ("hermes", "qwen_xml"):
        text = tool_guide(TOOLS, None, form, ids.get).text
        assert "<[7]>" in text and "<[8]>" in text and '"<tool_call>"' not in text
    assert "<[9]> GEMMA_TEXT? <[9]>" in tool_guide(TOOLS, None, "gemma", ids.get).text


def test_refusals() -> None:
    with pytest.raises(RequestError, match="'h' is not among the tools; allowed: f, g"):
        tool_guide(TOOLS, "h", "hermes", lambda token: None)
    with pytest.raises(UnsupportedError, match="of the form other cannot be required"):
        tool_guide(TOOLS, None, "other", lambda token: None)
