"""Tokens of think blocks are counted as the text is split, whatever the tokens and the blocks."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.text import (
    TAGS,
    THINK_MARKS,
    ReasoningSplitter,
    ThinkMarks,
    ThinkState,
    ThinkTokens,
    Tokenizer,
)

CHANNEL = THINK_MARKS["channel"]


class Pieces:
    """Token n is the n-th of some texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(self.texts[token] for token in ids)


def tokens(pieces: Sequence[str], marks: ThinkMarks, state: ThinkState) -> ThinkTokens:
    is_open = state is ThinkState.OPEN
    return ThinkTokens(Pieces(pieces), marks.start, marks.end, is_open)


def by_text(pieces: Sequence[str], marks: ThinkMarks, state: ThinkState) -> int:
    """Tokens any of whose text lies between the marks; none where no block begins."""
    text, begin = "".join(pieces), 0
    if state is not ThinkState.OPEN:
        lead = len(text) - len(text.lstrip())
        if not text.startswith(marks.start, lead):
            return 0
        begin = lead + len(marks.start)
    end = text.find(marks.end, begin)
    end = len(text) if end < 0 else end
    count, at = 0, 0
    for piece in pieces:
        count += begin <= at < end
        at += len(piece)
    return count


LETTERS = st.sampled_from(
    ["a", "\n", "b c", "<", "think", ">", "</", "<think>", "</think>", "</th", "ink>x"]
)
CHANNELS = st.sampled_from(["a", "<|channel>", "thought", "\n", "<channel|>", "<", "channel|>"])


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(list(ThinkState)), st.sampled_from([TAGS, CHANNEL]))
def test_counts_are_those_of_the_text_at_every_cut(
    data: st.DataObject, state: ThinkState, marks: ThinkMarks
) -> None:
    pieces = data.draw(st.lists(LETTERS if marks is TAGS else CHANNELS, max_size=14))
    expected = by_text(pieces, marks, state)
    ids = list(range(len(pieces)))
    for cut in range(len(ids) + 1):
        counter, splitter = tokens(pieces, marks, state), ReasoningSplitter(state, marks)
        parts = (ids[:cut], ids[cut:])
        found = [counter.push(part, final=n == 1) for n, part in enumerate(parts)]
        assert sum(found) == expected
        texts = [splitter.push("".join(pieces[i] for i in p), n == 1) for n, p in enumerate(parts)]
        # There is text of thinking only where there are such tokens.
        assert bool(sum(found)) or not "".join(delta.reasoning for delta in texts)


def test_control_tokens_are_marks_and_their_spellings_too(tokenizer: Tokenizer) -> None:
    for is_control in (True, False):
        ids = tokenizer.encode("<think>\nab</think>\n\nc", allow_special=is_control)
        counter = ThinkTokens(tokenizer, TAGS.start, TAGS.end, False)
        assert counter.push(ids) == 3 and counter.has_ended
        assert counter.first == (1 if is_control else len("<think>"))


@pytest.mark.parametrize(
    ("text", "state", "expected"),
    [
        ("<|channel>thought\nhm\n<channel|>yes", ThinkState.UNKNOWN, ("yes", "hm")),
        ("hm<channel|>yes", ThinkState.OPEN, ("yes", "hm")),
        ("<|channel>thought\n<channel|>yes", ThinkState.CLOSED, ("yes", "")),
        ("<|channel>final\nx", ThinkState.UNKNOWN, ("<|channel>final\nx", "")),
        ("<|channel>thought\nnever", ThinkState.UNKNOWN, ("", "never")),
    ],
)
def test_channels_are_split_at_every_cut(
    text: str, state: ThinkState, expected: tuple[str, str]
) -> None:
    for cut in range(len(text) + 1):
        splitter = ReasoningSplitter(state, CHANNEL)
        found = [splitter.push(text[:cut]), splitter.push(text[cut:], final=True)]
        answer = "".join(delta.answer for delta in found)
        assert (answer, "".join(delta.reasoning for delta in found)) == expected
