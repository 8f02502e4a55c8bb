"""TextStream: deltas equal the one-shot decode, stop strings are never shown in part."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.text import TextStream, Tokenizer
from blockdiff.text.stream import held_length

TEXTS = [
    "hello world",
    "copy 你好 👋🏽 world",
    "👩‍👩‍👧‍👦 é ü ñ",
    "a<think>b</think> <|im_end|>",
    "  \n\t x",
]


class Generic:
    """The same tokenizer without its byte table, as a tokenizer of another kind looks."""

    def __init__(self, inner: Tokenizer) -> None:
        self._inner = inner

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return self._inner.decode(ids, skip_special)


def pushed(stream: TextStream, chunks: Sequence[Sequence[int]]) -> tuple[str, str | None, int]:
    text, used, stop = "", 0, None
    for number, chunk in enumerate(chunks):
        delta = stream.push(chunk, final=number == len(chunks) - 1)
        text, used, stop = text + delta.text, used + delta.tokens_used, delta.stop
        if stop is not None:
            break
    return text, stop, used


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("generic", [False, True])
def test_every_split_gives_the_one_shot_text(
    tokenizer: Tokenizer, text: str, generic: bool
) -> None:
    ids = tokenizer.encode(text, allow_special=True)
    codec = Generic(tokenizer) if generic else tokenizer
    for cut in range(len(ids) + 1):
        whole, stop, used = pushed(TextStream(codec), [ids[:cut], ids[cut:]])
        assert (whole, stop, used) == (tokenizer.decode(ids), None, len(ids))


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_random_ids_in_random_blocks(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    size = data.draw(st.integers(1, 7))
    chunks = [ids[at : at + size] for at in range(0, len(ids), size)] or [[]]
    assert pushed(TextStream(tokenizer), chunks)[0] == tokenizer.decode(ids)


def test_unfinished_character_is_held_back(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("👋")
    assert len(ids) > 1
    stream = TextStream(tokenizer)
    assert [stream.push([token_id]).text for token_id in ids] == [""] * (len(ids) - 1) + ["👋"]


@settings(deadline=None, max_examples=300)
@given(
    text=st.text(alphabet="abc好\n", max_size=24),
    stops=st.lists(st.text(alphabet="abc好\n", min_size=1, max_size=4), min_size=1, max_size=3),
    size=st.integers(1, 9),
)
def test_stop_strings_cut_exactly(
    tokenizer: Tokenizer, text: str, stops: list[str], size: int
) -> None:
    ids = tokenizer.encode(text)
    chunks = [ids[at : at + size] for at in range(0, len(ids), size)] or [[]]
    got, stop, used = pushed(TextStream(tokenizer, stops), chunks)
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]
    if not ends:
        assert (got, stop, used) == (text, None, len(ids))
        return
    end, start, expected = min(ends)
    assert (got, stop) == (text[:start], expected)
    assert text[:end] in tokenizer.decode(ids[:used])
    assert text[:end] not in tokenizer.decode(ids[: used - 1])


def test_partial_stop_is_never_shown(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["world!"])
    seen = "".join(stream.push([token_id]).text for token_id in tokenizer.encode("hello worl"))
    assert seen == "hello "
    assert stream.push(tokenizer.encode("d?"), final=True).text == "world?"


def test_stop_before_min_tokens_does_not_count(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("x;y;z")
    assert len(ids) == 5
    assert pushed(TextStream(tokenizer, [";"], min_tokens=4), [ids]) == ("x;y", ";", 4)
    assert pushed(TextStream(tokenizer, [";"], min_tokens=5), [ids]) == ("x;y;z", None, 5)


def test_nothing_after_the_stop(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, [";"])
    assert stream.push(tokenizer.encode("a;b")).tokens_used == 2
    assert stream.push(tokenizer.encode("c"), final=True) == ("", None, 0)


@pytest.mark.parametrize(
    ("text", "expected"), [("", 0), ("xa", 1), ("xab", 2), ("xabc", 0), ("b", 0), ("aab", 2)]
)
def test_held_length(text: str, expected: int) -> None:
    assert held_length(text, ["abc"]) == expected
