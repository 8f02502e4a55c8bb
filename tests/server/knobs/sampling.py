"""Knobs of how tokens are drawn."""

import json

from .base import DRAWN, HELLO, SORT, TOKENIZER, Knob, chat

COPY = chat("copy a a a a a a", max_tokens=24, return_log_probs=True)

SAMPLING: tuple[Knob, ...] = (
    Knob(
        "temperature",
        {**DRAWN, "temperature": 0.0},
        {"temperature": 8.0},
        lambda a, b: a.text != b.text,
    ),
    Knob(
        "top_k",
        {**DRAWN, "temperature": 0.0},
        {"temperature": 8.0, "top_k": 1},
        lambda a, b: a.text == b.text,
    ),
    Knob(
        "top_p",
        {**DRAWN, "temperature": 0.0},
        {"temperature": 8.0, "top_p": 0.001},
        lambda a, b: a.text == b.text,
    ),
    Knob("seed", DRAWN, {"seed": 8}, lambda a, b: a.text != b.text),
    Knob(
        "min_p",
        {**DRAWN, "temperature": 0.0},
        {"temperature": 8.0, "min_p": 1.0},
        lambda a, b: a.text == b.text,
    ),
    Knob("repetition_penalty", COPY, {"repetition_penalty": 4.0}, lambda a, b: a.text != b.text),
    Knob(
        "presence_penalty",
        COPY,
        {"presence_penalty": 2.0},
        lambda a, b: a.joined("output_log_probs") != b.joined("output_log_probs"),
    ),
    Knob(
        "frequency_penalty",
        COPY,
        {"frequency_penalty": 2.0},
        lambda a, b: a.joined("output_log_probs") != b.joined("output_log_probs"),
    ),
    Knob(
        "logit_bias",
        SORT,
        {"logit_bias": json.dumps({HELLO[0]: 100.0})},
        lambda a, b: b.text.count(TOKENIZER.decode(HELLO[:1])) > 5,
    ),
    Knob(
        "stop_ramp",
        {**SORT, "max_tokens": 64},
        {"stop_ramp": '{"start": 0, "slope": 50, "most": 1000}'},
        lambda a, b: b.joined("num_output_tokens") < a.joined("num_output_tokens"),
    ),
    Knob(
        "think_end_ramp",
        chat("458+367", max_tokens=64, enable_thinking=True),
        {"think_end_ramp": '{"start": 0, "slope": 50, "most": 1000}'},
        lambda a, b: len(b.joined("reasoning_output")) < len(a.joined("reasoning_output")),
    ),
)
