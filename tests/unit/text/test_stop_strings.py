"""Stop strings: of many at once the first one completed, in time that the text alone decides."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.text import TextStream, Tokenizer
from blockdiff.text.stop_strings import StopStrings

TEXTS = st.text(alphabet="ab好", max_size=30)
STOPS = st.lists(st.text(alphabet="ab好", min_size=1, max_size=5), min_size=1, max_size=6)


def naive(text: str, stops: list[str], least: int) -> tuple[int, str] | None:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found and end >= least:
            return end, max(found, key=len)
    return None


@settings(max_examples=400, deadline=None)
@given(TEXTS, STOPS, st.integers(0, 8), st.integers(1, 7))
def test_first_completed_in_pieces(text: str, stops: list[str], least: int, size: int) -> None:
    automaton, seen = StopStrings(stops), 0
    for start in range(0, len(text), size):
        for character in text[start : start + size]:
            seen += 1
            found = automaton.push(character, seen >= least)
            if found is not None:
                assert (seen, found[1]) == naive(text, stops, least) and found[0] == 1
                return
            held = automaton.held
            # What is held may grow into a stop string; nothing longer may.
            tails = [text[seen - n : seen] for n in range(seen + 1)]
            assert held == max(
                n
                for n, tail in enumerate(tails)
                if any(s != tail and s.startswith(tail) for s in stops)
            )
    assert naive(text, stops, least) is None


@pytest.mark.parametrize("includes", [False, True])
def test_the_text_with_what_ended_it(tokenizer: Tokenizer, includes: bool) -> None:
    ids = tokenizer.encode("one 好two three")
    for cut in range(len(ids) + 1):
        stream = TextStream(tokenizer, ["好two", "o thr"], includes_stop=includes)
        texts = []
        for number, part in enumerate((ids[:cut], ids[cut:])):
            delta = stream.push(part, final=number == 1)
            texts.append(delta.text)
        assert "".join(texts) == ("one 好two" if includes else "one ")


def test_thousands_of_long_strings_do_not_slow_the_text_down() -> None:
    stops = [f"{'a' * 40}{number:04d}" for number in range(1_400)]
    automaton = StopStrings(stops)
    assert automaton.push("a" * 500_000) is None and automaton.held == 40
    assert automaton.push("0123") == (4, stops[123])


def test_a_string_of_its_own_repetition_takes_linear_time() -> None:
    automaton = StopStrings(["a" * 30_000 + "b"])
    assert automaton.push("a" * 400_000) is None and automaton.held == 30_000
    assert automaton.push("b") == (1, "a" * 30_000 + "b")
