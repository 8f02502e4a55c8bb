"""PieceTexts: single tokens' texts read like the whole, whatever is missing between them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.text import Tokenizer
from blockdiff.text.pieces import PieceTexts
from blockdiff.text.token_texts import REPLACEMENT

from .test_text_stream import TEXTS, Generic


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_texts_read_like_the_whole(tokenizer: Tokenizer, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS) | st.text(max_size=20))
    ids: list[int | None] = [*tokenizer.encode(text)]
    assert "".join(one or "" for one in PieceTexts(tokenizer).texts(ids)) == text
    hidden = data.draw(st.sets(st.integers(0, max(len(ids) - 1, 0))))
    seen = [None if place in hidden else token for place, token in enumerate(ids)]
    texts = PieceTexts(tokenizer).texts(seen)
    assert [one is None for one in texts] == [token is None for token in seen]
    # what is whole without the hidden ones is as it was
    shown = "".join(one for one in texts if one is not None)
    assert set(shown) <= set(text) | {REPLACEMENT}


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 286), max_size=8))
def test_any_tokens_have_texts(tokenizer: Tokenizer, ids: list[int]) -> None:
    texts = PieceTexts(tokenizer).texts(ids)
    joined = b"".join(tokenizer.token_bytes(token, False) for token in ids)
    kept = "".join(texts).replace(REPLACEMENT, "")  # type: ignore[arg-type]
    assert kept == joined.decode("utf-8", "ignore").replace(REPLACEMENT, "")


@pytest.mark.parametrize("text", TEXTS)
def test_vocabularies_of_other_kinds(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, allow_special=True)
    texts = PieceTexts(Generic(tokenizer)).texts(ids)
    assert "".join(texts) == tokenizer.decode(ids, skip_special=False)  # type: ignore[arg-type]
