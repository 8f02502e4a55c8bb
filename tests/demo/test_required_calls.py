"""Required tool calls with the demo model: whatever it would rather say, the answer is a call."""

import json
from pathlib import Path
from typing import Any

import pytest

from blockdiff.checkpoint import load_model
from blockdiff.core import Request
from blockdiff.engine import Engine, EngineConfig
from blockdiff.serving.tool_choice import ToolChoice, choose_tools, required_calls
from blockdiff.text import ThinkState, Tokenizer
from blockdiff.text.tool_calls import FORMS, ToolCallParser, offered_types
from tests.engine.fakes import run

CHECKPOINT = Path(__file__).resolve().parents[2] / "demo" / "checkpoint"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "properties": {"city": {"enum": ["Paris", "Oslo"]}, "n": {"enum": [1, 2]}},
                "required": ["city", "n"],
            },
        },
    }
    for name in ("get_weather", "get_time")
]
NAMED = json.dumps({"type": "function", "function": {"name": "get_time"}})


def request(
    tokenizer: Tokenizer, uid: int, form: str, choice: ToolChoice, **fields: Any
) -> Request:
    user = [{"role": "user", "content": "what is the weather in Paris"}]
    prompt = tokenizer.apply_chat_template(user, choice.tools, fields.pop("thinks", False))
    guide = required_calls(choice, form, tokenizer, tokenizer.think_state(prompt))
    return Request(uid, tuple(prompt), fields.pop("max_tokens", 160), guide=guide)


def test_the_answer_is_calls_in_every_form() -> None:
    tokenizer = Tokenizer.load(CHECKPOINT)
    config = EngineConfig(max_slots=8, max_context=512)
    engine = Engine(load_model(CHECKPOINT), config, tokenizer)
    choices = [choose_tools({"tool_choice": text}, TOOLS) for text in ("required", NAMED)]
    asked = [(form, choice) for form in FORMS for choice in choices]
    wanted = [request(tokenizer, i, form, choice) for i, (form, choice) in enumerate(asked)]
    wanted.append(request(tokenizer, 100, "hermes", choices[1], thinks=True))
    wanted.append(request(tokenizer, 101, "hermes", choices[1], max_tokens=9))
    results = run(engine, wanted)
    ends = set(engine.model.info.eos_token_ids)
    texts = {}
    for uid, blocks in results.items():
        tokens = [token for block in blocks for token in block.token_ids if token not in ends]
        texts[uid] = tokenizer.decode(tokens, skip_special=False)
    for uid, (form, choice) in enumerate(asked):
        parser = ToolCallParser(FORMS[form], offered_types(TOOLS))
        found = parser.push(texts[uid], final=True)
        assert results[uid][-1].stop_reason != "guide_incomplete"
        assert (found.text, found.has_malformed) == ("", False), (form, texts[uid])
        names = {call.name for call in found.calls}
        assert names == {"get_time"} if choice.named else names <= {"get_weather", "get_time"}
        assert all(json.loads(call.arguments)["n"] in (1, 2) for call in found.calls)
        assert len(found.calls) == 1 or not choice.named
    _, mark, call = texts[100].partition("</think>")
    assert mark and ToolCallParser().push(call.strip(), final=True).calls[0].name == "get_time"
    assert results[101][-1].stop_reason == "guide_incomplete"


@pytest.mark.parametrize("text", ["", "auto", "none"])
def test_nothing_else_has_a_guide(text: str) -> None:
    tokenizer = Tokenizer.load(CHECKPOINT)
    choice = choose_tools({"tool_choice": text}, TOOLS)
    assert required_calls(choice, "hermes", tokenizer, ThinkState.CLOSED) is None
