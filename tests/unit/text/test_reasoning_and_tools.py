"""Reasoning and tool calls come out the same however the text is cut."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdiff.text import ReasoningSplitter, ThinkState, ToolCallParser

CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Zürich </tool_call>"}}\n</tool_call>'
OTHER = '<tool_call>{"name": "g", "arguments": "{\\"n\\": 1}"}</tool_call>'

REASONING = [
    ("the sum\n</think>\n\n825", ThinkState.OPEN, ("825", "the sum")),
    ("\n\na\n\nb</think>c</think>", ThinkState.OPEN, ("c</think>", "a\n\nb")),
    ("never closed\n", ThinkState.OPEN, ("", "never closed\n")),
    ("</think>x", ThinkState.OPEN, ("x", "")),
    (" \n<think>\nhm\n</think>\n\nyes", ThinkState.UNKNOWN, ("yes", "hm")),
    ("  <thin> is text", ThinkState.UNKNOWN, ("  <thin> is text", "")),
    ("no <think>later</think>", ThinkState.UNKNOWN, ("no <think>later</think>", "")),
    ("  ", ThinkState.UNKNOWN, ("  ", "")),
    ("<think>x</think>\n\ny", ThinkState.CLOSED, ("<think>x</think>\n\ny", "")),
    ("x", ThinkState.CLOSED, ("x", "")),
]

# (text, what stays text, names and arguments of the calls)
TOOLS: list[tuple[str, str, list[Any]]] = [
    ("plain < text <tool", "plain < text <tool", []),
    (CALL, "", [("f", {"city": "Zürich </tool_call>"})]),
    (f"hi\n{CALL}\n{OTHER}", "hi", [("f", {"city": "Zürich </tool_call>"}), ("g", {"n": 1})]),
    (f"{OTHER}\nbye", "bye", [("g", {"n": 1})]),
    ("a\n\nb\n", "a\n\nb\n", []),
    ("x\n<tool_call>{]</tool_call>\ny", "x\n<tool_call>{]</tool_call>\ny", []),
    ('<tool_call>{"name": 1}</tool_call>', '<tool_call>{"name": 1}</tool_call>', []),
    ("<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>", []),
    (
        '<tool_call>{"name": "f", "arguments": {}}',
        '<tool_call>{"name": "f", "arguments": {}}',
        [],
    ),
    (f"<tool_call>{{]</tool_call>{OTHER}", "<tool_call>{]</tool_call>", [("g", {"n": 1})]),
]


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    edges = [0, *sorted(cuts), len(text)]
    return [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@pytest.mark.parametrize(("text", "state", "expected"), REASONING)
def test_reasoning_at_every_cut(text: str, state: ThinkState, expected: tuple[str, str]) -> None:
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1, 3):
            splitter = ReasoningSplitter(state)
            parts = pieces(text, [first, second])
            found = [splitter.push(p, i == len(parts) - 1) for i, p in enumerate(parts)]
            answer = "".join(delta.answer for delta in found)
            assert (answer, "".join(delta.reasoning for delta in found)) == expected


def test_markers_are_never_shown_in_part() -> None:
    splitter = ReasoningSplitter(ThinkState.OPEN)
    assert splitter.push("ab</th") == ("", "ab")
    assert splitter.push("ink>c") == ("c", "")
    parser = ToolCallParser()
    assert parser.push("ab<tool_") == ("ab", [])
    assert parser.push("x") == ("<tool_x", [])


def parsed(parts: Sequence[str]) -> tuple[str, list[Any]]:
    parser = ToolCallParser()
    found = [parser.push(p, i == len(parts) - 1) for i, p in enumerate(parts)]
    calls = [(c.name, json.loads(c.arguments)) for delta in found for c in delta.calls]
    return "".join(delta.text for delta in found), calls


@pytest.mark.parametrize(("text", "rest", "calls"), TOOLS)
def test_tool_calls_at_every_cut(text: str, rest: str, calls: list[Any]) -> None:
    for cut in range(len(text) + 1):
        assert parsed(pieces(text, [cut])) == (rest, calls)
    assert parsed(list(text)) == (rest, calls)


@given(
    text=st.lists(
        st.sampled_from(["<tool_call>", "</tool_call>", "\n", "{", "x", '"', OTHER, "<tool", "好"]),
        max_size=8,
    ).map("".join),
    data=st.data(),
)
def test_any_text_survives_any_cut(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=4))
    whole = parsed([text])
    assert parsed(pieces(text, cuts)) == whole
    if not whole[1]:
        # Nothing parsed as a call: not a character may be lost.
        assert whole[0] == text
