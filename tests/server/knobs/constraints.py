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
    Knob(
        "bad_words",
        SORT,
        {"bad_words": ["31", "7"]},
        lambda a, b: "31" in a.text and not any(bad in b.text for bad in ("31", "7")),
    ),
    Knob(
        "guided_decoding_guide_type",
        SORT,
        {"guided_decoding_guide_type": "json"},
        lambda a, b: b.last["finish_reason"] == "length" or isinstance(json.loads(b.text), dict),
    ),
    Knob(
        "guided_decoding_guide",
        SORT,
        {
            "guided_decoding_guide_type": "json_schema",
            "guided_decoding_guide": json.dumps(
                {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4}
            ),
        },
        lambda a, b: len(json.loads(b.text)) == 4 and b.last["finish_reason"] == "stop",
    ),
)
