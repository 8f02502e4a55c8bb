"""What a line asks: ids of its prompt, and what its tools make of the answer.

Knows chat messages and tools; knows nothing of engines.
"""

import json
from typing import Any

from blockdiff.cli.line_fields import RequestLine
from blockdiff.core import Guide
from blockdiff.errors import ConfigError, RequestError
from blockdiff.serving.guide_fields import read_guide
from blockdiff.serving.messages import parse_messages, parse_tools
from blockdiff.serving.tool_choice import choose_tools, required_calls
from blockdiff.text import ThinkState, Tokenizer


def read_prompt(line: RequestLine, tokenizer: Tokenizer | None) -> tuple[list[int], Guide | None]:
    """Ids of the prompt, and the guide to calls that have to be made; raises RequestError."""
    if line.messages is None or line.input_ids is not None:
        prompt = "prompt" if line.input_ids is None else "input_ids"
        for field in ("tools", "tool_choice", "enable_thinking"):
            if getattr(line, field) is not None:
                raise RequestError(f"{field}: needs messages, not {prompt}")
    if line.input_ids is not None:
        return line.input_ids, read_guide(_asked(line), ThinkState.CLOSED)
    if tokenizer is None:
        raise ConfigError("the model folder has no tokenizer.json; give token ids (input_ids)")
    if line.messages is None:
        return tokenizer.encode(line.prompt or ""), read_guide(_asked(line), ThinkState.CLOSED)
    messages = parse_messages(json.dumps(line.messages))
    tools = parse_tools(json.dumps(line.tools)) if line.tools else []
    chosen = line.tool_choice or ""
    text = chosen if isinstance(chosen, str) else json.dumps(chosen)
    asked = _asked(line)
    choice = choose_tools({"tool_choice": text, **asked}, tools)
    ids = tokenizer.apply_chat_template(messages, choice.tools, line.enable_thinking)
    think = tokenizer.think_state(ids)
    calls = required_calls(choice, tokenizer.tool_form.form.name, tokenizer, think)
    return ids, calls or read_guide(asked, think)


def _asked(line: RequestLine) -> dict[str, Any]:
    """What of the line makes a guide, by the names of the server's fields."""
    return {
        "messages": line.messages,
        "enable_thinking": line.enable_thinking,
        "guided_decoding_guide_type": line.guide_type,
        "guided_decoding_guide": line.guide or "",
    }
