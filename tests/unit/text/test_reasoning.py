"""Reasoning comes out the same however the text is cut."""

from collections.abc import Sequence

import pytest

from blockdiff.text import ReasoningSplitter, ThinkState

REASONING = [
    ("the sum\n</think>\n\n825", ThinkState.OPEN, ("825", "the sum")),
    ("\n\na\n\nb</think>c</think>", ThinkState.OPEN, ("c</think>", "a\n\nb")),
    ("never closed\n", ThinkState.OPEN, ("", "never closed\n")),
    ("</think>x", ThinkState.OPEN, ("x", "")),
    (" \n<think>\nhm\n</think>\n\nyes", ThinkState.UNKNOWN, ("yes", "hm")),
    ("  <thin> is text", ThinkState.UNKNOWN, ("  <thin> is text", "")),
    ("no <think>later</think>", ThinkState.UNKNOWN, ("no <think>later</think>", "")),
    ("  ", ThinkState.UNKNOWN, ("  ", "")),
    ("<think>x</think>\n\ny", ThinkState.CLOSED, ("y", "x")),
    ("x", ThinkState.CLOSED, ("x", "")),
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
