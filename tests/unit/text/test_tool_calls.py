"""Tool calls of every form: found however the text is cut, and nothing else is ever lost."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.text.tool_calls import FORMS, ToolCallParser, detect_form, offered_types
from blockdiff.text.tool_calls.typed_values import read_typed

CITY = '<tool_call>\n{"name": "f", "arguments": {"city": "Zürich </tool_call>"}}\n</tool_call>'
STRING = '<tool_call>{"name": "g", "arguments": "{\\"n\\": 1}"}</tool_call>'
NESTED = '<tool_call>{"name": "f", "arguments": {"a": {"b": [{"c": "}"}]}}}</tool_call>'


def xml(name: str, **values: str) -> str:
    parts = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items()]
    return f"<tool_call>\n<function={name}>\n{''.join(parts)}</function>\n</tool_call>"


def tagged(name: str, **values: str) -> str:
    parts = [f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in values.items()]
    return f"<tool_call>{name}\n{''.join(parts)}</tool_call>"


def bare(text: str) -> str:
    return f"<|tool_call>call:{text}<tool_call|>"


OFFERED = offered_types(
    [
        {
            "function": {
                "name": "f",
                "parameters": {
                    "properties": {
                        "n": {"type": "integer"},
                        "x": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                        "city": {"type": "string"},
                        "on": {"$ref": "#/$defs/flag"},
                        "many": {"type": ["array", "object"]},
                        "kind": {"enum": [1, "one"]},
                        "any": {},
                    },
                    "$defs": {"flag": {"type": "boolean"}},
                },
            }
        },
        {"function": {"name": "g"}},
    ]
)
TYPED = {"n": "7", "x": "null", "city": "7", "on": "True", "many": '[{"a": "}"}]', "any": "7"}
READ = {"n": 7, "x": None, "city": "7", "on": True, "many": [{"a": "}"}], "any": "7"}

# form -> (text, what stays text, names and arguments of the calls, whether one is malformed)
Case = tuple[str, str, list[Any], bool]
CASES: dict[str, list[Case]] = {
    "hermes": [
        ("plain < text <tool", "plain < text <tool", [], False),
        (CITY, "", [("f", {"city": "Zürich </tool_call>"})], False),
        (
            f"hi\n{NESTED}\n{STRING}\n",
            "hi",
            [("f", {"a": {"b": [{"c": "}"}]}}), ("g", {"n": 1})],
            0,
        ),
        (f"{STRING}\nbye{STRING}", "bye", [("g", {"n": 1})] * 2, False),
        ("a\n\nb\n", "a\n\nb\n", [], False),
        ("x\n<tool_call>{]</tool_call>\ny", "x\n<tool_call>{]</tool_call>\ny", [], True),
        (f"<tool_call>{{]</tool_call>{STRING}", "<tool_call>{]</tool_call>", [("g", {"n": 1})], 1),
        # a quote that nobody closed hides no later call
        (
            f'<tool_call>{{"a</tool_call>{STRING}',
            '<tool_call>{"a</tool_call>',
            [("g", {"n": 1})],
            1,
        ),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "1\n2"}}</tool_call>',
            "",
            [("f", {"a": "1\n2"})],
            False,
        ),
    ],
    "qwen_xml": [
        (xml("f", **TYPED), "", [("f", READ)], False),
        (f"a{xml('g')}\n{xml('f', n='x')}b", "ab", [("g", {}), ("f", {"n": "x"})], False),
        (xml("f", city=" a\n</tool_call>\n"), "", [("f", {"city": " a\n</tool_call>\n"})], False),
        (xml("f", city="</parameter> <"), "", [("f", {"city": "</parameter> <"})], False),
        (xml("f", city=f"so: {xml('g')} ok"), "", [("f", {"city": f"so: {xml('g')} ok"})], False),
        (
            f"{xml('f', n='1')[:-24]}</tool_call>{xml('g')}",
            f"{xml('f', n='1')[:-24]}</tool_call>",
            [("g", {})],
            True,
        ),
    ],
    "llada2": [
        (CITY, "", [("f", {"city": "Zürich </tool_call>"})], False),
        (tagged("f", **TYPED), "", [("f", READ)], False),
        (
            f"a\n{tagged('g')}\n{tagged('f', city='<b>')}",
            "a",
            [("g", {}), ("f", {"city": "<b>"})],
            0,
        ),
        (tagged("f", city="a</tool_call>b"), "", [("f", {"city": "a</tool_call>b"})], False),
    ],
    "gemma": [
        (
            bare('f{n:7,x:-1.5e3,city:<|"|>a "b" {<tool_call|>}<|"|>,many:[{k:null},[]],on:true}'),
            "",
            [
                (
                    "f",
                    {
                        "n": 7,
                        "x": -1500.0,
                        "city": 'a "b" {<tool_call|>}',
                        "many": [{"k": None}, []],
                        "on": True,
                    },
                )
            ],
            False,
        ),
        (f"a{bare('g{}')}{bare('g{ }')}b", "ab", [("g", {}), ("g", {})], False),
        (bare("f{n:nan}"), bare("f{n:nan}"), [], True),
        (bare('f{n:"7"}') + "x", bare('f{n:"7"}') + "x", [], True),
    ],
}
# one call of each form, and what it is
CALLS: dict[str, tuple[str, Any]] = {
    "hermes": (NESTED, ("f", {"a": {"b": [{"c": "}"}]}})),
    "qwen_xml": (xml("f", **TYPED), ("f", READ)),
    "llada2": (tagged("f", **TYPED), ("f", READ)),
    "gemma": (bare('f{city:<|"|>}<tool_call|><|"|>}'), ("f", {"city": "}<tool_call|>"})),
}
# Between the markers of the form; comes back as it is.
NO_CALLS = {
    "hermes": [
        '{"name": 1, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        "[]",
        "",
        '{"name": "f"}',
        '{"name": "f", "arguments": {"a": 1, "a": 2}}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": 1e999}}',
        '{"name": "f", "arguments": {"a": "\\ud800"}}',
        '{"name": "f", "arguments": {}, "more": 1}',
        '{"name": "f", "arguments": {"a": ' + "[" * 3000 + "]" * 3000 + "}}",
        '{"name": "f", "arguments": {"a": ' + "1" * 5000 + "}}",
        '{"name": "not_offered", "arguments": {}}',
    ],
    "qwen_xml": [
        "<function=f>",
        "<function=f></function>x",
        "<function=not_offered></function>",
        "<function=f><parameter=n>1</parameter><parameter=n>2</parameter></function>",
        '{"name": "f", "arguments": {}}',
    ],
    "llada2": ["", "f g", "f<arg_key>n</arg_key>", "not_offered", '{"name": "f"}'],
    "gemma": ["f{}", "call:f", "call:f{}x", "call:f{n:1,n:2}", "call:h{}", "call:f{n:1,}"]
    + ["call:f{n:" + "[" * 3000 + "]" * 3000 + "}"],
}
PIECES = {
    "hermes": [CITY, STRING, '{"name": "f", "arguments": ', "}", '"', "\\"],
    "qwen_xml": [xml("f", n="1"), "<function=f>", "<parameter=n>", "</parameter>", "</function>"],
    "llada2": [
        tagged("f", n="1"),
        CITY,
        "f",
        "<arg_key>n</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ],
    "gemma": [bare('g{a:<|"|>}<|"|>}'), "call:f{", "n:1", '<|"|>', "}", "[", ","],
}


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    edges = [0, *sorted(cuts), len(text)]
    return [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]


def parsed(form: str, parts: Sequence[str]) -> tuple[str, list[Any], bool]:
    parser = ToolCallParser(FORMS[form], OFFERED)
    found = [parser.push(part, i == len(parts) - 1) for i, part in enumerate(parts)]
    calls = [(c.name, json.loads(c.arguments)) for delta in found for c in delta.calls]
    text = "".join(delta.text for delta in found)
    return text, calls, any(delta.has_malformed for delta in found)


@pytest.mark.parametrize(
    ("form", "case"), [(form, case) for form, cases in CASES.items() for case in cases]
)
def test_calls_at_every_cut(form: str, case: Case) -> None:
    text, rest, calls, has_malformed = case
    expected = (rest, calls, bool(has_malformed))
    for cut in range(len(text) + 1):
        assert parsed(form, pieces(text, [cut])) == expected
    assert parsed(form, list(text)) == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_call_cut_anywhere_comes_back_as_text(form: str) -> None:
    text = CASES[form][1][0]
    _, calls, _ = parsed(form, [text])
    for length in range(len(text)):
        rest, found, has_malformed = parsed(form, [text[:length]])
        assert found == calls[: len(found)]
        if not found:
            assert rest == text[:length]
            assert has_malformed == (FORMS[form].start in text[:length])


@pytest.mark.parametrize(
    ("form", "body"), [(form, body) for form, bodies in NO_CALLS.items() for body in bodies]
)
def test_what_is_no_call_is_text(form: str, body: str) -> None:
    text = f"a\n{FORMS[form].start}{body}{FORMS[form].end}\n\nb"
    assert parsed(form, [text]) == (text, [], True)


def test_a_partial_marker_is_never_shown() -> None:
    for form in FORMS.values():
        parser = ToolCallParser(form)
        assert parser.push("ab\n" + form.start[:-1]).text == "ab"
        assert parser.push("?").text == f"\n{form.start[:-1]}?"


@settings(deadline=None, max_examples=120)
@given(data=st.data())
@pytest.mark.parametrize("form", FORMS)
def test_any_text_survives_any_cut(form: str, data: st.DataObject) -> None:
    marks = [FORMS[form].start, FORMS[form].end, FORMS[form].start[:5], "\n", "好", "x"]
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES[form] + marks), max_size=10)))
    whole = parsed(form, [text])
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    assert parsed(form, pieces(text, cuts)) == whole
    assert parsed(form, list(text)) == whole
    if not whole[1]:
        assert whole[0] == text
    assert whole[2] or whole[1] or FORMS[form].start not in text


@settings(deadline=None, max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("form", FORMS)
def test_every_part_comes_out_where_it_belongs(form: str, data: st.DataObject) -> None:
    broken = f"{FORMS[form].start}?{FORMS[form].end}"
    kinds = st.sampled_from(["call", "broken", "a", "b\n", "\n"])
    parts = [
        {"call": CALLS[form][0], "broken": broken}.get(k, k) for k in data.draw(st.lists(kinds))
    ]
    rest, found, has_malformed = parsed(form, ["".join(parts)])
    others = "".join(part for part in parts if part != CALLS[form][0])
    # only line breaks next to calls are gone
    assert rest.replace("\n", "") == others.replace("\n", "")
    assert found == [CALLS[form][1]] * parts.count(CALLS[form][0])
    assert has_malformed == (broken in parts)


@settings(deadline=None, max_examples=60)
@given(text=st.text(st.sampled_from('<|tool_cal/>{}[]":,=fn1\\\n function parmet')), data=st.data())
@pytest.mark.parametrize("form", FORMS)
def test_garbage_in_a_call_loses_nothing(form: str, text: str, data: st.DataObject) -> None:
    text = FORMS[form].start + text + data.draw(st.sampled_from(["", FORMS[form].end]))
    rest, calls, has_malformed = parsed(form, pieces(text, [data.draw(st.integers(0, len(text)))]))
    assert calls or (rest, has_malformed) == (text, True)


def test_many_open_calls_cost_no_more_than_a_moment() -> None:
    text = '<tool_call>{"a</tool_call>' + '<tool_call>{"name": \\"</tool_call>' * 500
    assert parsed("hermes", [text]) == (text, [], True)


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5.0", ["integer"], 5),
        ("5", ["number"], 5),
        ("5", ["string", "integer"], 5),
        ("5", ["string"], "5"),
        ("true", ["number"], "true"),
        ("None", ["string", "null"], None),
        ("FALSE", ["boolean"], False),
        ('{"a": 1, "a": 2}', ["object"], '{"a": 1, "a": 2}'),
        (' {"a": 1}', ["object"], {"a": 1}),
        ("", ["array"], ""),
        ("NaN", ["number"], "NaN"),
    ],
)
def test_values_by_the_types_of_the_schema(text: str, types: list[str], value: Any) -> None:
    assert repr(read_typed(text, types)) == repr(value)


def test_types_of_odd_schemas() -> None:
    assert OFFERED["f"]["kind"] == ["integer", "string"]
    assert OFFERED["g"] == {}
    endless = {"name": "h", "parameters": {"properties": {"a": {"$ref": "#/properties/a"}}}}
    odd = {"name": "i", "parameters": {"properties": {"a": {"type": 5, "anyOf": "x"}, "b": True}}}
    found = offered_types([{"function": endless}, {"function": odd}])
    assert found == {"h": {"a": []}, "i": {"a": [], "b": []}}


@pytest.mark.parametrize(
    ("template", "vocabulary", "model_type", "form"),
    [
        ("<tool_call>\n<function=", ["<tool_call>"], "qwen3_5_moe", "qwen_xml"),
        ("<tool_call>", ["<tool_call>"], "qwen3_5_moe", "hermes"),
        ("<tool_call>", [], "llada2_moe", "llada2"),
        ("<tool_call><arg_key>", [], None, "llada2"),
        ("<|tool_call>call:", [], "clover_moe", "gemma"),
        (None, ["<|tool_call>"], None, "gemma"),
        (None, [], "diffusion_gemma", "gemma"),
        (None, [], "llada2_moe", "llada2"),
        ("no tools", [], "sdar_moe", "hermes"),
    ],
)
def test_signs_of_a_form(
    template: str | None, vocabulary: list[str], model_type: str | None, form: str
) -> None:
    found = detect_form(template, lambda token: token in vocabulary, model_type)
    assert found.form.name == form and found.reason
