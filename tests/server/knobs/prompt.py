"""Knobs of what is asked."""

import json

from .base import RAW, SORT, TOOL, Knob, chat

PROMPT: tuple[Knob, ...] = (
    Knob("text_input", SORT, {**RAW, "messages": ""}, lambda a, b: a.text != b.text),
    Knob("messages", SORT, chat("upper stone"), lambda a, b: "STONE" in b.text),
    Knob(
        "tools",
        chat("what is the weather in Paris in celsius", max_tokens=64),
        {"tools": json.dumps([TOOL])},
        lambda a, b: b.last["finish_reason"] == "tool_calls" and not a.joined("tool_calls"),
    ),
    Knob(
        "tool_choice",
        chat("what is the weather in Paris in celsius", max_tokens=64, tools=json.dumps([TOOL])),
        {"tool_choice": "none"},
        lambda a, b: a.last["finish_reason"] == "tool_calls" != b.last["finish_reason"],
    ),
    Knob(
        "tool_choice",
        chat("upper stone", max_tokens=64, tools=json.dumps([TOOL])),
        {"tool_choice": json.dumps({"type": "function", "function": {"name": "get_weather"}})},
        lambda a, b: (
            a.last["finish_reason"] != "tool_calls" == b.last["finish_reason"]
            and json.loads(b.joined("tool_calls"))[0]["function"]["name"] == "get_weather"
        ),
    ),
    Knob(
        "enable_thinking",
        chat("458+367", max_tokens=64, enable_thinking=False),
        {"enable_thinking": True},
        lambda a, b: not a.joined("reasoning_output") and bool(b.joined("reasoning_output")),
    ),
    Knob(
        "thinking_budget",
        chat("458+367", max_tokens=64, enable_thinking=True),
        {"thinking_budget": 3},
        lambda a, b: (
            a.joined("num_reasoning_tokens") > 3 == b.joined("num_reasoning_tokens")
            and a.joined("reasoning_output").startswith(b.joined("reasoning_output")[:2])
            and len(b.text) > 0
        ),
    ),
)
