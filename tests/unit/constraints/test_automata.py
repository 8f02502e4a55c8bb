"""Constraints against their definitions: masks token by token, any split of a stream, bad text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.constraints.bad_strings import BadStrings
from blockdiff.constraints.base import All, Constraint
from blockdiff.constraints.grammars import grammar_text
from blockdiff.constraints.guided import GuideConstraint, build_matcher, make_tokenizer
from blockdiff.constraints.vocabulary import Vocabulary
from blockdiff.core import Guide, GuideKind
from tests.engine.byte_tokens import ByteTokens

SIZE = 71
TOKENS = ByteTokens(SIZE, (69, 70))
VOCABULARY = Vocabulary(TOKENS, TOKENS.all_bytes(SIZE))
LLGUIDANCE = make_tokenizer(VOCABULARY)
REGEX = build_matcher(LLGUIDANCE, grammar_text(Guide(GuideKind.REGEX, "(ab|c|é)*[0-9]+(,a?b)?")))
BAD = st.lists(st.text("abcé12", min_size=1, max_size=5), min_size=1, max_size=4)
STREAM = st.lists(st.integers(0, SIZE - 1), max_size=14)


def guided() -> Constraint:
    return GuideConstraint(VOCABULARY, REGEX.deep_copy(), False)


def allowed(constraint: Constraint) -> list[int]:
    flags = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
    assert not flags[SIZE:].any()
    return np.flatnonzero(flags).tolist()


@given(bad=BAD, stream=STREAM)
@settings(deadline=None, max_examples=150)
def test_bad_strings_never_get_into_the_text(bad: list[str], stream: list[int]) -> None:
    own, kept = BadStrings(VOCABULARY, bad), list[int]()
    for token in stream:
        may = allowed(own)
        text = TOKENS.decode([*kept, token])
        assert (token in may) == (not any(word in text for word in bad))
        assert own.push([token]) == (token in may)
        kept += [token] if token in may else []


@given(stream=STREAM, cuts=st.sets(st.integers(0, 14)), bad=BAD)
@settings(deadline=None, max_examples=150)
def test_a_stream_in_pieces_is_the_stream(
    stream: list[int], cuts: set[int], bad: list[str]
) -> None:
    def both() -> Constraint:
        return All([BadStrings(VOCABULARY, bad), guided()])

    whole, parts = both(), both()
    count = whole.push(stream)
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    taken = 0
    for start, end in zip(places, places[1:], strict=False):
        piece = stream[start:end]
        assert parts.check(piece) == (got := parts.push(piece))
        taken += got
        if got < len(piece):
            break
    assert taken == count
    assert (whole.is_complete, allowed(whole)) == (parts.is_complete, allowed(parts))


@given(stream=st.lists(st.integers(0, 400), max_size=10))
@settings(deadline=None, max_examples=80)
def test_masks_are_what_a_guide_takes(stream: list[int]) -> None:
    own = guided()
    for number in stream:
        may = allowed(own)
        assert may == [token for token in range(SIZE) if own.check([token])]
        if not may:
            break
        assert own.push([may[number % len(may)]]) == 1


@pytest.mark.parametrize("token", [69, 70, SIZE, 10_000])
def test_control_and_unknown_tokens_are_no_text(token: int) -> None:
    own = guided()
    assert (own.check([token]), own.push([token])) == (0, 0)
