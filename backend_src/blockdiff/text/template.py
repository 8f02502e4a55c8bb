"""Renders a checkpoint's chat template in a sandbox, with limits on size and time.

Knows what templates expect to find; knows nothing of token ids.
"""

import datetime
import json
from collections.abc import Mapping
from typing import Any

import jinja2

from blockdiff.errors import ConfigError, RequestError
from blockdiff.text.template_limits import BUDGET, MAX_SIZE, Budget
from blockdiff.text.template_sandbox import Environment


class CallArguments(dict[str, Any]):
    """Arguments of an earlier call: an object to templates that walk or dump it, and JSON text to
    those that print it or add it to a string.
    """

    def __str__(self) -> str:
        return _to_json(self)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


class ChatTemplate:
    """One compiled template. Thread-safe: every render has its own loop budget."""

    def __init__(self, source: str, names: Mapping[str, str] | None = None) -> None:
        """``names``: texts that templates know by name, such as ``bos_token``."""
        self._names = dict(names or {})
        try:
            self._template = Environment(_to_json).build(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"chat_template.jinja line {error.lineno}: {error.message}; fix the template"
            ) from error
        except RecursionError as error:
            raise ConfigError("chat_template.jinja: nested too deeply; fix the template") from error

    def render(self, messages: Any, tools: Any, enable_thinking: bool | None) -> str:
        """The prompt text, ending where the assistant is to go on."""
        budget = Budget()
        values: dict[str, Any] = {
            **self._names,
            BUDGET: budget,
            "messages": [_with_arguments(message) for message in messages],
            "tools": tools or None,
            "add_generation_prompt": True,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "range": budget.range,
        }
        if enable_thinking is not None:
            values["enable_thinking"] = enable_thinking
        try:
            text = self._render_limited(values)
            text.encode("utf-8")
            return text
        except UnicodeEncodeError as error:
            bad = ord(error.object[error.start])
            raise RequestError(
                f"messages, tools: got \\u{bad:04x} in a string, allowed UTF-8 text"
            ) from error
        except jinja2.TemplateError as error:
            raise RequestError(f"messages: the chat template refuses them: {error}") from error
        except RecursionError as error:
            raise RequestError("messages: the chat template calls itself too deeply") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise RequestError(f"messages: the chat template cannot use them: {error}") from error

    def _render_limited(self, values: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(**values):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_SIZE:
                raise RequestError(f"messages: prompt grows beyond {MAX_SIZE} characters")
        return "".join(pieces)


def _with_arguments(message: Any) -> Any:
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not calls:
        return message
    wrapped = []
    for call in calls:
        function = call["function"]
        arguments = CallArguments(function["arguments"])
        wrapped.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": wrapped}


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    # Not Jinja's own filter: that one escapes <, > and & for HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
