"""What a line asks: ids of its prompt, and what its tools make of the answer.

Knows chat messages and tools; knows nothing of engines.
"""

import json
from typing import Any, NamedTuple

from blockdiff.cli.line_fields import RequestLine
from blockdiff.core import Guide, Thinking
from blockdiff.errors import ConfigError, RequestError
from blockdiff.serving.messages import parse_messages, parse_tools
from blockdiff.serving.text_fields import read_thinking
from blockdiff.serving.tool_choice import choose_tools, required_calls
from blockdiff.text import Tokenizer


class Prompt(NamedTuple):
    """What a line asks, for the engine."""

    input_ids: list[int]
    guide: Guide | None = None
    """To calls that have to be made."""
    thinking: Thinking | None = None


def read_prompt(line: RequestLine, tokenizer: Tokenizer | None) -> Prompt:
    """Raises RequestError."""
    if line.messages is None or line.input_ids is not None:
        prompt = "prompt" if line.input_ids is None else "input_ids"
        for field in ("tools", "tool_choice", "enable_thinking", "thinking_budget"):
            if getattr(line, field) is not None:
                raise RequestError(f"{field}: needs messages, not {prompt}")
    if line.input_ids is not None:
        return Prompt(line.input_ids)
    if tokenizer is None:
        raise ConfigError("the model folder has no tokenizer.json; give token ids (input_ids)")
    if line.messages is None:
        return Prompt(tokenizer.encode(line.prompt or ""))
    messages = parse_messages(json.dumps(line.messages))
    tools = parse_tools(json.dumps(line.tools)) if line.tools else []
    chosen = line.tool_choice or ""
    text = chosen if isinstance(chosen, str) else json.dumps(chosen)
    choice = choose_tools({"tool_choice": text}, tools)
    ids = tokenizer.apply_chat_template(messages, choice.tools, line.enable_thinking)
    form = tokenizer.tool_form.form.name
    think = tokenizer.think_state(ids)
    given: dict[str, Any] = {
        "enable_thinking": line.enable_thinking,
        "pinned": line.pinned,
        "suffix": line.suffix or line.suffix_ids,
    }
    if line.thinking_budget is not None:
        given["thinking_budget"] = line.thinking_budget
    thinking = read_thinking(given, think, tokenizer)
    return Prompt(ids, required_calls(choice, form, tokenizer, think), thinking)
