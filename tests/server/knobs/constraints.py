"""Knobs of what an answer must contain."""

import json

from .base import HELLO, SORT, Knob, chat

CONSTRAINTS: tuple[Knob, ...] = (
    Knob(
        "pinned",
        SORT,
        {"pinned": json.dumps(dict(enumerate(HELLO, 2)))},
        lambda a, b: "hello" in b.text and "hello" not in a.text,
    ),
    Knob(
        "suffix",
        {key: value for key, value in SORT.items() if key != "max_tokens"},
        {"suffix": "hello", "gap": 9},
        lambda a, b: b.text.endswith("hello") and b.joined("num_output_tokens") == 9 + len(HELLO),
    ),
    Knob(
        "gap",
        {**chat("sort 52 7 31 88", suffix="hello", gap=9), "max_tokens": ""},
        {"gap": 5},
        lambda a, b: (
            (a.joined("num_output_tokens") - b.joined("num_output_tokens"))
            == 4 * b.text.endswith("hello")
        ),
    ),
)
