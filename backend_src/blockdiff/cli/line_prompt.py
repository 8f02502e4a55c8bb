"""What a line asks: ids of its prompt, and what its tools make of the answer.

Knows chat messages and tools; knows nothing of engines.
"""

import json

from blockdiff.cli.line_fields import RequestLine
from blockdiff.core import Guide
from blockdiff.errors import ConfigError, RequestError
from blockdiff.serving.messages import parse_messages, parse_tools
from blockdiff.serving.tool_choice import choose_tools, required_calls
from blockdiff.text import Tokenizer


def read_prompt(line: RequestLine, tokenizer: Tokenizer | None) -> tuple[list[int], Guide | None]:
    """Ids of the prompt, and the guide to calls that have to be made; raises RequestError."""
    if line.messages is None or line.input_ids is not None:
        prompt = "prompt" if line.input_ids is None else "input_ids"
        for field in ("tools", "tool_choice", "enable_thinking"):
            if getattr(line, field) is not None:
                raise RequestError(f"{field}: needs messages, not {prompt}")
    if line.input_ids is not None:
        return line.input_ids, None
    if tokenizer is None:
        raise ConfigError("the model folder has no tokenizer.json; give token ids (input_ids)")
    if line.messages is None:
        return tokenizer.encode(line.prompt or ""), None
    messages = parse_messages(json.dumps(line.messages))
    tools = parse_tools(json.dumps(line.tools)) if line.tools else []
    chosen = line.tool_choice or ""
    text = chosen if isinstance(chosen, str) else json.dumps(chosen)
    choice = choose_tools({"tool_choice": text}, tools)
    ids = tokenizer.apply_chat_template(messages, choice.tools, line.enable_thinking)
    form = tokenizer.tool_form.form.name
    return ids, required_calls(choice, form, tokenizer, tokenizer.think_state(ids))
