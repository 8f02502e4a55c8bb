"""Renders a checkpoint's chat template in a sandbox, with limits on size and time.

``shield`` marks control-token spellings inside user data so that the caller can tell them from the
template's own. Knows nothing of token ids.
"""

import datetime
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.sandbox

from blockdiff.errors import ConfigError, RequestError

# Noncharacter: never valid in interchanged text, so user data loses nothing by giving it up.
SHIELD = "\ufdd0"
MAX_RENDERED_CHARACTERS = 16 * 1024 * 1024
MAX_RENDER_SECONDS = 2.0
MAX_LOOP_STEPS = 100_000


def shield(value: Any, spellings: Sequence[str]) -> Any:
    """A copy of JSON-like ``value`` whose strings contain none of ``spellings`` unbroken."""
    if isinstance(value, str):
        text = value.replace(SHIELD, "\ufffd")
        for spelling in spellings:
            if spelling in text:
                text = text.replace(spelling, spelling[0] + SHIELD + spelling[1:])
        return text
    if isinstance(value, Mapping):
        return {shield(key, spellings): shield(item, spellings) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shield(item, spellings) for item in value]
    return value


def unshield(text: str) -> str:
    return text.replace(SHIELD, "")


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


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**", "%"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [side for side in (left, right) if isinstance(side, int)]
        is_growth = operator == "**" or not all(isinstance(s, int | float) for s in (left, right))
        if is_growth and any(abs(size) > MAX_LOOP_STEPS for size in sizes):
            raise RequestError(f"messages: chat template asks for {operator} by {max(sizes)}")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """One compiled template. Thread-safe: every render has its own loop budget."""

    def __init__(self, source: str) -> None:
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"chat_template.jinja line {error.lineno}: {error.message}; fix the template"
            ) from error

    def render(self, messages: Any, tools: Any, enable_thinking: bool | None) -> str:
        """The prompt text, ending where the assistant is to go on."""
        values: dict[str, Any] = {
            "messages": [_with_arguments(message) for message in messages],
            "tools": tools or None,
            "add_generation_prompt": True,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "range": _BudgetedRange(),
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
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise RequestError(f"messages: the chat template cannot use them: {error}") from error

    def _render_limited(self, values: Mapping[str, Any]) -> str:
        give_up_at = time.monotonic() + MAX_RENDER_SECONDS
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(**values):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_RENDERED_CHARACTERS:
                raise RequestError(
                    f"messages: prompt grows beyond {MAX_RENDERED_CHARACTERS} characters"
                )
            if time.monotonic() > give_up_at:
                raise RequestError(
                    f"messages: the chat template takes more than {MAX_RENDER_SECONDS:g} s"
                )
        return "".join(pieces)


class _BudgetedRange:
    """``range`` whose total over one render is bounded, so that nested loops end."""

    def __init__(self) -> None:
        self._left = MAX_LOOP_STEPS

    def __call__(self, *bounds: int) -> range:
        steps = range(*bounds)
        self._left -= len(steps)
        if self._left < 0:
            raise RequestError(f"messages: the chat template loops over {MAX_LOOP_STEPS} steps")
        return steps


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
