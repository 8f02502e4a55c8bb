"""Stop words and budgets of thinking: from checked fields to what engine and answer need.

Knows the tokenizer and the server's limits; knows nothing of the engine.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from blockdiff.core import Thinking
from blockdiff.errors import UnsupportedError
from blockdiff.serving.fields import MAX_STOP_CHARACTERS
from blockdiff.serving.json_text import refuse
from blockdiff.serving.settings import Settings
from blockdiff.text import ThinkState, Tokenizer

NO_LIMIT = -1


def read_words(name: str, given: Sequence[str], most: int, longest: int) -> tuple[str, ...]:
    """The strings without empty and repeated ones.

    Raises RequestError for more than ``most``, or for one of more than ``longest`` characters.
    """
    words = tuple(dict.fromkeys(word for word in given if word))
    if len(words) > most:
        raise refuse(name, f"{len(words)} strings", f"up to {most} strings")
    for word in words:
        if len(word) > longest:
            raise refuse(name, word, f"up to {longest} characters each")
    return words


def read_stop_words(given: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """The strings that end an answer, within the limits of the server; raises RequestError."""
    most, longest = settings.max_stop_words, settings.max_stop_word_characters
    words = read_words("stop_words", given, most, longest)
    total = sum(map(len, words))
    if total > MAX_STOP_CHARACTERS:
        allowed = f"up to {MAX_STOP_CHARACTERS} characters in all"
        raise refuse("stop_words", f"{total} characters", allowed)
    return words


def read_thinking(
    given: Mapping[str, Any], think: ThinkState, tokenizer: Tokenizer
) -> Thinking | None:
    """The budget of a chat whose prompt ends as ``think`` says; None: there is no limit.

    Thinking switched off is a budget of nothing: a think block that the template or the model
    opens all the same is closed at once.
    """
    budget = given.get("thinking_budget", NO_LIMIT)
    marks = tokenizer.think_marks
    if budget != NO_LIMIT and marks is None:
        raise UnsupportedError(
            f"thinking_budget: got {budget}, but nothing tells that this model has think blocks; "
            "leave it out"
        )
    # what else is given by place leaves no room for it
    is_off = given.get("enable_thinking") is False and not given.get("pinned")
    if budget == NO_LIMIT and is_off and not given.get("suffix"):
        budget = 0
    if budget == NO_LIMIT or marks is None:
        return None
    is_open = think is ThinkState.OPEN
    return Thinking(budget, tuple(tokenizer.think_end_ids()), is_open, marks.start, marks.end)
