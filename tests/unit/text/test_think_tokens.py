"""Tokens of think blocks are counted as the text is split, whatever the tokens and the blocks."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.errors import UnsupportedError
from blockdiff.serving.text_fields import read_thinking
from blockdiff.text import (
    TAGS,
    THINK_MARKS,
    ReasoningSplitter,
    TextStream,
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


@pytest.fixture(scope="module")
def gemma(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A vocabulary that counts the marks of channels as special, which hides them elsewhere."""
    folder = tmp_path_factory.mktemp("gemma")
    definition = json.loads((model_dir / "tokenizer.json").read_text("utf-8"))
    marks = {"<think>": "<|channel>", "</think>": "<channel|>"}
    for token in definition["added_tokens"]:
        if token["content"] in marks:
            token |= {"content": marks[token["content"]], "special": True}
    (folder / "tokenizer.json").write_text(json.dumps(definition), "utf-8")
    (folder / "config.json").write_text("{}")
    template = (
        "{{ messages[0].content }}{% if enable_thinking %}<|channel>thought\n"
        "{% elif enable_thinking is defined %}<|channel>thought\n<channel|>{% endif %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    return Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("thinking", "state"),
    [(True, ThinkState.OPEN), (False, ThinkState.CLOSED), (None, ThinkState.UNKNOWN)],
)
def test_channels_of_a_checkpoint(gemma: Tokenizer, thinking: bool, state: ThinkState) -> None:
    assert gemma.think_marks is CHANNEL
    messages = [{"role": "user", "content": "<channel|> and <|channel>thought"}]
    ids = gemma.apply_chat_template(messages, enable_thinking=thinking)
    assert gemma.think_state(ids) is state
    assert gemma.think_end_ids() == [gemma.special.think_end]
    answer = gemma.encode("<|channel>thought\nhm\n<channel|>yes", allow_special=True)
    stream, splitter = TextStream(gemma), ReasoningSplitter(ThinkState.UNKNOWN, CHANNEL)
    assert splitter.push(stream.push(answer, final=True).text, final=True) == ("yes", "hm")
    counter = ThinkTokens(gemma, CHANNEL.start, CHANNEL.end, False)
    assert counter.push(answer) == len(gemma.encode("hm\n"))


def test_a_model_without_think_blocks(model_dir: Path, tmp_path: Path) -> None:
    definition = json.loads((model_dir / "tokenizer.json").read_text("utf-8"))
    added = [t for t in definition["added_tokens"] if "think" not in t["content"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps({**definition, "added_tokens": added}))
    plain = Tokenizer.load(tmp_path)
    assert plain.think_marks is None and plain.think_end_ids() == []
    asked = {"thinking_budget": 3}
    with pytest.raises(UnsupportedError, match="thinking_budget: got 3, but nothing tells"):
        read_thinking(asked, ThinkState.UNKNOWN, plain)
    assert read_thinking({"enable_thinking": False}, ThinkState.UNKNOWN, plain) is None
