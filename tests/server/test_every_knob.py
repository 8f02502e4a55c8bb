"""Every field shows its effect: real gRPC, the demo model, one row of ``KNOBS`` for each field.

A row asks twice, without and with the field, and looks at both answers. Whoever adds a field adds
a row; a field without one fails the last test.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from blockdiff.embedded import TritonServer
from blockdiff.serving.fields import FIELDS
from blockdiff.text import Tokenizer

from .calls import Response, stream_all
from .conftest import CHECKPOINT

pytestmark = pytest.mark.server


class Answer:
    """All responses of one request."""

    def __init__(self, responses: list[Response]) -> None:
        self.errors = [str(response.error) for response in responses if response.error is not None]
        self.parts = [response.values for response in responses if response.error is None]

    def joined(self, name: str) -> Any:
        values = [part[name] for part in self.parts]
        return "".join(values) if isinstance(values[0], str) else sum(values)

    @property
    def text(self) -> str:
        return str(self.joined("text_output"))

    @property
    def last(self) -> dict[str, Any]:
        return self.parts[-1]

    @property
    def canvases(self) -> list[dict[str, Any]]:
        return [json.loads(part["canvas"]) for part in self.parts if part["canvas"]]


class Knob(NamedTuple):
    """``given`` beside ``base``; ``shows`` compares the answers without and with it."""

    field: str
    base: dict[str, Any]
    given: dict[str, Any]
    shows: Callable[[Answer, Answer], bool]


def chat(text: str, **fields: Any) -> dict[str, Any]:
    messages = json.dumps([{"role": "user", "content": text}])
    return {"messages": messages, "stream": True, "max_tokens": 40, **fields}


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"properties": {"city": {"type": "string"}, "unit": {"type": "string"}}},
    },
}
HELLO = Tokenizer.load(CHECKPOINT).encode("hello")
SORT = chat("sort 52 7 31 88")
DRAWN = chat("reverse stone", temperature=8.0, seed=7, ignore_eos=True, max_tokens=32)
RAW = {"text_input": "sort 1 2 3", "stream": True, "max_tokens": 24}

KNOBS: tuple[Knob, ...] = (
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
        "enable_thinking",
        chat("458+367", max_tokens=64, enable_thinking=False),
        {"enable_thinking": True},
        lambda a, b: not a.joined("reasoning_output") and bool(b.joined("reasoning_output")),
    ),
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
        "ignore_eos",
        SORT,
        {"ignore_eos": True},
        lambda a, b: a.last["finish_reason"] == "stop" and b.joined("num_output_tokens") == 40,
    ),
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
        "block_length",
        SORT,
        {"block_length": 4, "ignore_eos": True},
        lambda a, b: [part["num_output_tokens"] for part in b.parts] == [4] * 10,
    ),
    Knob(
        "denoise_steps",
        SORT,
        {"denoise_steps": 5, "ignore_eos": True, "block_length": 8},
        lambda a, b: [part["denoise_steps_used"] for part in b.parts] == [5] * 5,
    ),
    Knob(
        "threshold",
        {**SORT, "threshold": 0.0},
        {"threshold": 1.0},
        lambda a, b: a.joined("denoise_steps_used") < b.joined("denoise_steps_used"),
    ),
    Knob(
        "algorithm",
        SORT,
        {"algorithm": "entropy_bound"},
        lambda a, b: b.errors != [] and "algorithm" in b.errors[0],
    ),
    Knob(
        "quality",
        {**SORT, "quality": "fast"},
        {"quality": "high"},
        lambda a, b: (
            (round(a.last["threshold_used"], 2), round(b.last["threshold_used"], 2)) == (0.7, 0.98)
        ),
    ),
    Knob(
        "stream",
        {**SORT, "stream": False},
        {"stream": True, "block_length": 4},
        lambda a, b: len(a.parts) == 1 < len(b.parts),
    ),
    Knob(
        "stream_denoise",
        {**SORT, "denoise_steps": 4, "block_length": 8, "ignore_eos": True},
        {"stream_denoise": True},
        lambda a, b: shows_canvases(a, b),
    ),
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
    # what it does to others that run is shown by the engine's own tests
    Knob("running_priority", SORT, {"running_priority": 9}, lambda a, b: a.text == b.text),
    Knob(
        "exclude_input_in_output",
        RAW,
        {"exclude_input_in_output": False},
        lambda a, b: b.text == "sort 1 2 3" + a.text,
    ),
    Knob(
        "return_log_probs",
        SORT,
        {"return_log_probs": True},
        lambda a, b: (
            "output_log_probs" not in a.last
            and [len(p["output_log_probs"]) for p in b.parts]
            == [p["num_output_tokens"] for p in b.parts]
        ),
    ),
    Knob(
        "return_num_input_tokens",
        SORT,
        {"return_num_input_tokens": False},
        lambda a, b: a.last["num_input_tokens"] > 0 and "num_input_tokens" not in b.last,
    ),
    Knob(
        "return_num_output_tokens",
        SORT,
        {"return_num_output_tokens": False},
        lambda a, b: "num_output_tokens" not in b.last,
    ),
    Knob(
        "sampling_parameters",
        SORT,
        {"sampling_parameters": '{"max_tokens": 2, "stop_words": ["31"]}'},
        lambda a, b: b.last["stop_reason"] == "31",  # the tensor's max_tokens counts
    ),
)


def shows_canvases(plain: Answer, watched: Answer) -> bool:
    """Every preview as a canvas in its order; texts and counts as without them."""
    canvases = watched.canvases
    assert plain.canvases == []
    assert len(canvases) == len(watched.parts), "every response has one"
    assert [canvas["block"] for canvas in canvases] == sorted(c["block"] for c in canvases)
    for part, canvas in zip(watched.parts, canvases, strict=True):
        assert len(canvas["tokens"]) == 8
        if not canvas["is_finished"]:
            assert (part["num_output_tokens"], part["denoise_steps_used"]) == (0, 0)
            assert part["text_output"] == "" and not part["is_final"]
    masked = [sum(p["state"] == "masked" for p in canvas["tokens"]) for canvas in canvases]
    assert all(
        canvas["is_finished"] == (left == 0) for canvas, left in zip(canvases, masked, strict=True)
    )
    # how many arrive depends on how fast they are taken, but some of 20 do
    assert len(canvases) > 5
    same = ("text_output", "num_output_tokens", "denoise_steps_used")
    return all(plain.joined(name) == watched.joined(name) for name in same)


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.field)
def test_knob_shows_its_effect(demo: TritonServer, knob: Knob) -> None:
    without, with_it = (
        Answer(stream_all(demo, {k: v for k, v in values.items() if v != ""}))
        for values in (knob.base, {**knob.base, **knob.given})
    )
    assert without.errors == []
    assert knob.shows(without, with_it), (knob.field, without.parts, with_it.parts, with_it.errors)


def test_every_field_has_a_knob() -> None:
    missing = {field.name for field in FIELDS if not field.is_refused} - {k.field for k in KNOBS}
    assert not missing, "add a row to KNOBS"
