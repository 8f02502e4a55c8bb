"""Tools of a request: what may be chosen, what earlier calls look like to a template."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockdiff.errors import ConfigError, RequestError
from blockdiff.serving.answer import AnswerText
from blockdiff.serving.messages import parse_messages
from blockdiff.serving.preprocessor import Preprocessor
from blockdiff.serving.settings import Settings, read_settings
from blockdiff.serving.spec import TextContext, parse_spec
from blockdiff.text import Tokenizer
from blockdiff.text.template import ChatTemplate

from .conftest import as_tensors

Build = Callable[..., Any]
USER = json.dumps([{"role": "user", "content": "hi"}])
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {"a": {}}}}}
    for name in ("f", "g")
]
NAMED = {"type": "function", "function": {"name": "g"}}


def ask(build: Build, **fields: Any) -> Any:
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in fields.items()}
    return build(messages=USER, max_tokens=8, **texts)


def test_offered_tools_reach_the_text_side(build: Build, tokenizer: Tokenizer) -> None:
    ids, spec = ask(build, tools=TOOLS)
    assert (spec.text.tool_form, spec.text.tools) == ("hermes", {"f": {"a": []}, "g": {"a": []}})
    assert ask(build, tools=TOOLS, tool_choice="auto")[0] == ids
    none = ask(build, tools=TOOLS, tool_choice="none")
    assert (none[1].text.tool_form, none[1].text.tools) == (None, {})
    # the model does not see them either
    assert none[0] == ask(build)[0] != ids
    assert ask(build, tool_choice="none")[0] == none[0]


def test_required_calls_are_guided(build: Build) -> None:
    required = ask(build, tools=TOOLS, tool_choice="required")[1].guide
    named = ask(build, tools=TOOLS, tool_choice=NAMED)[1].guide
    assert (required.kind, required.think) == ("tool_calls", "unknown")
    assert "call_1" in required.text and "call_1" not in named.text
    spec = ask(build, tools=TOOLS, tool_choice=NAMED)[1]
    assert parse_spec(spec.model_dump_json()).engine_request(1, (1,), None).guide == named
    assert ask(build, tools=TOOLS, tool_choice="auto")[1].guide is None


def test_the_form_can_be_set(tokenizer: Tokenizer, settings: Settings) -> None:
    set_to = replace(settings, tool_form="qwen_xml")
    tensors = as_tensors({"messages": USER, "tools": json.dumps(TOOLS), "max_tokens": 8})
    assert Preprocessor(tokenizer, set_to, 256).build(tensors, {})[1].text.tool_form == "qwen_xml"
    with pytest.raises(ConfigError, match="BLOCKDIFF_TOOL_FORM: got 'x', allowed hermes or"):
        read_settings({}, {"BLOCKDIFF_MODEL": "m", "BLOCKDIFF_TOOL_FORM": "x"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": "auto"}, 'tool_choice: got "auto", allowed none without tools'),
        ({"tool_choice": "required"}, "allowed none without tools"),
        ({"tool_choice": NAMED}, "allowed none without tools"),
        ({"tools": TOOLS, "tool_choice": "any"}, 'tool_choice: got "any", allowed none, auto'),
        ({"tools": TOOLS, "tool_choice": "{"}, "tool_choice: got .*allowed JSON"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice: got another object"),
        ({"tools": TOOLS, "tool_choice": {**NAMED, "type": "x"}}, "got another object"),
        ({"tools": TOOLS, "tool_choice": {**NAMED, "function": {"name": 1}}}, "another object"),
        (
            {"tools": TOOLS, "tool_choice": {**NAMED, "function": {"name": "h"}}},
            r'tool_choice: got "h", allowed a name among the tools \(f, g\)',
        ),
        (
            {"tools": [{"function": {"name": "f", "parameters": 5}}]},
            r"tools\[0\].function.parameters: got .5., allowed a JSON schema",
        ),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"properties": []}}}]},
            r"parameters.properties: got .*allowed an object",
        ),
        ({"tools": [TOOLS[0], TOOLS[0]]}, r'tools\[1\]: got "f" twice'),
    ],
)
def test_refusals(build: Build, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ask(build, **fields)


def test_a_choice_needs_a_chat(build: Build) -> None:
    assert build(text_input="x", tool_choice="none", max_tokens=8)
    with pytest.raises(RequestError, match='tool_choice: got "auto", allowed none with text_input'):
        build(text_input="x", tool_choice="auto", max_tokens=8)


def test_required_calls_are_a_guide(build: Build) -> None:
    any_call = ask(build, tools=TOOLS, tool_choice="required")[1].guide
    named = ask(build, tools=TOOLS, tool_choice=NAMED)[1].guide
    assert any_call.kind == named.kind == "tool_calls"
    assert '\\"f\\"' in any_call.text and '\\"f\\"' not in named.text
    with pytest.raises(RequestError, match="none or auto together with guided_decoding_guide_type"):
        ask(build, tools=TOOLS, tool_choice="required", guided_decoding_guide_type="json")


def test_a_choice_as_a_json_value(build: Build) -> None:
    given = {"messages": json.loads(USER), "tools": TOOLS, "tool_choice": NAMED, "max_tokens": 8}
    given["tool_choice"] = {**NAMED, "function": {"name": "h"}}
    with pytest.raises(RequestError, match="a name among the tools"):
        build(sampling_parameters=json.dumps(given))


@pytest.mark.parametrize(
    "written",
    [
        "{{ call.arguments }}",
        "{{ call.arguments | tojson }}",
        "{{ '' + call.arguments + '' }}",
        "{% if call.arguments is string %}x{% else %}{{ call.arguments | tojson }}{% endif %}",
        '{ {%- for k, v in call.arguments | items %}"{{ k }}": {{ v | tojson }}{% endfor -%} }',
    ],
)
def test_templates_get_arguments_as_they_want_them(written: str) -> None:
    source = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set call = c.function %}"
    template = ChatTemplate(source + written + "{% endfor %}{% endfor %}")
    for arguments in ({"a": "ü'"}, '{"a": "ü\'"}'):
        call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
        history = [{"role": "assistant", "content": None, "tool_calls": [call]}]
        text = template.render(parse_messages(json.dumps(history)), None, None)
        assert text == '{"a": "ü\'"}'


def test_results_are_linked_to_their_calls() -> None:
    def call(name: str, **more: Any) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": {}}, **more}

    def result(**more: Any) -> dict[str, Any]:
        return {"role": "tool", "content": "7", **more}

    history = [
        {"role": "assistant", "content": None, "tool_calls": [call("f"), call("g", id="x")]},
        result(tool_call_id="x"),
        result(),
        result(),
        {"role": "assistant", "content": None, "tool_calls": [call("f", id=None)]},
        result(name="own"),
        result(tool_call_id="gone"),
    ]
    messages = parse_messages(json.dumps(history))
    assert [c["id"] for m in messages for c in m.get("tool_calls", ())] == ["call_0", "x", "call_2"]
    linked = [(m.get("tool_call_id"), m.get("name")) for m in messages if m["role"] == "tool"]
    assert linked == [("x", "g"), ("call_0", "f"), (None, None), ("call_2", "own"), ("gone", None)]


def test_markers_that_are_special_tokens_still_make_calls(tmp_path: Path, model_dir: Path) -> None:
    definition = json.loads((model_dir / "tokenizer.json").read_text())
    size = max(definition["model"]["vocab"].values())
    last = max([size, *(token["id"] for token in definition["added_tokens"])])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    marks = enumerate(["<|tool_call>", "<tool_call|>", '<|"|>', "<|other|>"], last + 1)
    definition["added_tokens"] += [
        {"id": i, "content": text, "special": True, **flags} for i, text in marks
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    (tmp_path / "config.json").write_text('{"model_type": "diffusion_gemma"}')
    tokenizer = Tokenizer.load(tmp_path)
    text = 'so<|other|> <|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>'
    ids = tokenizer.encode(text, allow_special=True)
    assert last + 3 in ids and tokenizer.encode(text).count(last + 3) == 0
    context = TextContext(is_chat=True, think="closed", tool_form="gemma", tools={"f": {}})
    answer = AnswerText(tokenizer, 1, context)
    deltas = [answer.push([token_id], "", False) for token_id in ids] + [answer.push([], "", True)]
    assert "".join(delta.text for delta in deltas) == "so "
    (call,) = [call for delta in deltas for call in delta.calls]
    assert call["function"] == {"name": "f", "arguments": '{"a": "x"}'}
    assert not any(delta.has_malformed_call for delta in deltas)
