"""Knobs of where an answer ends."""

from .base import SORT, TOKENIZER, Knob

# The sorted numbers begin with it.
(FIRST, *_) = TOKENIZER.encode("7")

ENDINGS: tuple[Knob, ...] = (
    Knob(
        "max_tokens",
        SORT,
        {"max_tokens": 3},
        lambda a, b: (b.joined("num_output_tokens"), b.last["finish_reason"]) == (3, "length"),
    ),
    Knob(
        "min_tokens",
        SORT,
        {"min_tokens": 30},
        lambda a, b: a.joined("num_output_tokens") < 30 <= b.joined("num_output_tokens"),
    ),
    Knob(
        "stop_words",
        SORT,
        {"stop_words": ["31"]},
        lambda a, b: b.text == a.text.partition("31")[0] and b.last["stop_reason"] == "31",
    ),
    Knob(
        "stop_token_ids",
        {**SORT, "ignore_eos": True},
        {"stop_token_ids": [FIRST]},
        lambda a, b: b.last["stop_reason"] == str(FIRST) and b.joined("num_output_tokens") == 1,
    ),
    Knob(
        "include_stop_str_in_output",
        {**SORT, "stop_words": ["31"]},
        {"include_stop_str_in_output": True},
        lambda a, b: b.text == a.text + "31",
    ),
    Knob(
        "ignore_eos",
        SORT,
        {"ignore_eos": True},
        lambda a, b: a.last["finish_reason"] == "stop" and b.joined("num_output_tokens") == 40,
    ),
)
