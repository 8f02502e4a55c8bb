"""Vocabularies that fall back to bytes: deltas make the one-shot text, characters come whole."""

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers

from blockdiff.text import TextStream

TEXTS = [
    "hello world",
    " two  spaces ",
    "你好，世界。こんにちは 안녕",
    "👩‍👩‍👧‍👦 family 👋🏽 🇪🇺",
    "é ü ñ́ \u200d x",
    "a\nb\t c",
]


class Fallback:
    """Words of a few letters, and every byte."""

    def __init__(self) -> None:
        words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"helowrdfamiytxs"]
        words += ["he", "ll", "▁w", "or", "好"]
        vocabulary = {word: number for number, word in enumerate(words)}
        merges = [("h", "e"), ("l", "l"), ("▁", "w"), ("o", "r")]
        model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True)
        self.inner = tokenizers.Tokenizer(model)
        self.inner.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        self.inner.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.inner.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        text: str = self.inner.decode(list(ids), skip_special_tokens=skip_special)
        return text


CODEC = Fallback()


@pytest.mark.parametrize("text", TEXTS)
def test_every_cut_gives_the_one_shot_text(text: str) -> None:
    ids = CODEC.encode(text)
    assert CODEC.decode(ids) == text
    for cut in range(len(ids) + 1):
        stream = TextStream(CODEC)
        first, second = stream.push(ids[:cut]), stream.push(ids[cut:], final=True)
        assert first.text + second.text == text
        assert text.startswith(first.text), "a character came in parts"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, CODEC.inner.get_vocab_size() - 1), max_size=24), st.integers(1, 5))
def test_blocks_do_not_matter_for_any_ids(ids: list[int], size: int) -> None:
    def text(parts: Sequence[Sequence[int]]) -> str:
        stream = TextStream(CODEC)
        found = [stream.push(part).text for part in parts]
        return "".join([*found, stream.push([], final=True).text])

    assert text([ids]) == text([ids[at : at + size] for at in range(0, len(ids), size)])


def test_stop_strings_of_characters_in_bytes() -> None:
    ids = CODEC.encode("say 👋🏽 now")
    for cut in range(len(ids) + 1):
        stream = TextStream(CODEC, ["🏽"])
        found = [stream.push(ids[:cut]), stream.push(ids[cut:], final=True)]
        assert "".join(delta.text for delta in found) == "say 👋"
        assert [delta.stop for delta in found if delta.stop] == ["🏽"]


def test_tokens_without_text_do_not_pile_up() -> None:
    calls = 0

    class Counting(Fallback):
        def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
            nonlocal calls
            calls += len(ids)
            return super().decode([i for i in ids if i], skip_special)

    codec = Counting()
    stream = TextStream(codec)
    ids = [0] * 2_000 + codec.encode("hello")
    assert "".join([stream.push(ids).text, stream.push([], final=True).text]).strip() == "hello"
    assert calls < 40 * len(ids)
