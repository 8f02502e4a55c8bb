"""What a line asks: ids of its prompt, and what its tools make of the answer.

Knows chat messages and tools; knows nothing of engines.
"""

import json
from typing import Any, NamedTuple

from blockdiff.cli.line_fields import RequestLine
from blockdiff.core import Guide, Thinking
from blockdiff.errors import ConfigError, RequestError
from blockdiff.serving.guide_fields import read_guide
from blockdiff.serving.messages import parse_messages, parse_tools
from blockdiff.serving.text_fields import read_thinking
from blockdiff.serving.tool_choice import choose_tools, required_calls
from blockdiff.text import ThinkState, Tokenizer


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
        return Prompt(line.input_ids, read_guide(_asked(line), ThinkState.CLOSED))
    if tokenizer is None:
        raise ConfigError("the model folder has no tokenizer.json; give token ids (input_ids)")
    if line.messages is None:
        ids = tokenizer.encode(line.prompt or "")
        return Prompt(ids, read_guide(_asked(line), ThinkState.CLOSED))
    messages = parse_messages(json.dumps(line.messages))
    tools = parse_tools(json.dumps(line.tools)) if line.tools else []
    chosen = line.tool_choice or ""
    text = chosen if isinstance(chosen, str) else json.dumps(chosen)
    asked = _asked(line)
    choice = choose_tools({"tool_choice": text, **asked}, tools)
    ids = tokenizer.apply_chat_template(messages, choice.tools, line.enable_thinking)
    think = tokenizer.think_state(ids)
    calls = required_calls(choice, tokenizer.tool_form.form.name, tokenizer, think)
    return Prompt(ids, calls or read_guide(asked, think), read_thinking(asked, think, tokenizer))


def _asked(line: RequestLine) -> dict[str, Any]:
    """What of the line makes a guide or a budget, by the names of the server's fields."""
    asked = {
        "messages": line.messages,
        "enable_thinking": line.enable_thinking,
        "guided_decoding_guide_type": line.guide_type,
        "guided_decoding_guide": line.guide or "",
        "pinned": line.pinned,
        "suffix": line.suffix or line.suffix_ids,
    }
    budget = line.thinking_budget
    return asked if budget is None else {**asked, "thinking_budget": budget}
