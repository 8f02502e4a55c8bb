"""Answers, rows and prompts that the tables of knobs have in common."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from blockdiff.text import Tokenizer
from tests.server.calls import Response
from tests.server.conftest import CHECKPOINT


class Answer:
    """All responses of one request."""

    def __init__(self, responses: list[Response]) -> None:
        self.errors = [str(response.error) for response in responses if response.error is not None]
        self.parts = [response.values for response in responses if response.error is None]

    def joined(self, name: str) -> Any:
        values = [part[name] for part in self.parts]
        if isinstance(values[0], list):
            return [item for value in values for item in value]
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
TOKENIZER = Tokenizer.load(CHECKPOINT)
HELLO = TOKENIZER.encode("hello")
SORT = chat("sort 52 7 31 88")
DRAWN = chat("reverse stone", temperature=8.0, seed=7, ignore_eos=True, max_tokens=32)
RAW = {"text_input": "sort 1 2 3", "stream": True, "max_tokens": 24}
