"""Finds tool calls of the ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` form.

Text deltas in, text without the calls plus the completed calls out. A call that is not well formed
comes back as text, character for character. Knows nothing of tokens, tools offered or reasoning.
"""

import json
import re
from typing import Any, NamedTuple

from blockdiff.text.stream import held_length

CALL_START = "<tool_call>"
CALL_END = "</tool_call>"
_TRAILING_NEWLINES = re.compile(r"\n*$")


class ToolCall(NamedTuple):
    name: str
    arguments: str
    """A JSON object, as text."""


class ParsedText(NamedTuple):
    text: str
    calls: list[ToolCall]


class ToolCallParser:
    """Holds back a marker that is not complete yet and the call that it opens."""

    def __init__(self) -> None:
        self._held = ""
        self._is_inside = False
        self._is_after_call = False

    def push(self, text: str, final: bool = False) -> ParsedText:
        """Newly decided text and calls; ``final`` releases what is held back as text."""
        self._held += text
        texts: list[str] = []
        calls: list[ToolCall] = []
        while self._advance(texts, calls):
            pass
        if final:
            texts.append(self._held)
            self._held = ""
        return ParsedText("".join(texts), calls)

    def _advance(self, texts: list[str], calls: list[ToolCall]) -> bool:
        """One step from marker to marker; False when more text is needed."""
        if self._is_inside:
            return self._close_call(texts, calls)
        if self._is_after_call:
            self._drop_newlines_between_calls()
        start = self._held.find(CALL_START)
        if start >= 0:
            # The newlines before a call stay with it until it is known to be well formed.
            text = self._held[:start].rstrip("\n")
            self._emit(texts, text)
            self._held = self._held[len(text) :]
            self._is_inside = True
            return True
        kept = held_length(self._held, [CALL_START])
        settled = self._held[: len(self._held) - kept]
        newlines = _TRAILING_NEWLINES.search(settled)
        settled = settled[: newlines.start()] if newlines else settled
        self._emit(texts, settled)
        self._held = self._held[len(settled) :]
        return False

    def _emit(self, texts: list[str], text: str) -> None:
        if text:
            texts.append(text)
            self._is_after_call = False

    def _drop_newlines_between_calls(self) -> None:
        visible = self._held.lstrip("\n")
        if visible:
            self._held = visible

    def _close_call(self, texts: list[str], calls: list[ToolCall]) -> bool:
        body_start = self._held.index(CALL_START) + len(CALL_START)
        end = self._held.find(CALL_END, body_start)
        while end >= 0:
            call, is_cut = _parse_call(self._held[body_start:end])
            if not is_cut:
                break
            # The end marker stood inside a JSON string: the call goes on.
            end = self._held.find(CALL_END, end + 1)
        else:
            return False
        after = end + len(CALL_END)
        self._is_inside = False
        if call is None:
            self._emit(texts, self._held[:after])
        else:
            calls.append(call)
            self._is_after_call = True
        self._held = self._held[after:]
        return True


def _parse_call(body: str) -> tuple[ToolCall | None, bool]:
    """The call in ``body``, if it is one, and whether the body ends inside a JSON string."""
    try:
        given: Any = json.loads(body)
        arguments = given["arguments"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        if isinstance(given["name"], str) and isinstance(arguments, dict):
            return ToolCall(given["name"], json.dumps(arguments, ensure_ascii=False)), False
    except json.JSONDecodeError as error:
        return None, error.msg.startswith("Unterminated string")
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    return None, False
