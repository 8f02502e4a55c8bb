"""Finds tool calls in text that arrives in pieces, whatever form they are written in.

Text deltas in; text without the calls, the completed calls and a flag out. What opens like a call
and is none comes back as text, character for character. Knows nothing of tokens and reasoning.
"""

import json
import re
from typing import Any, NamedTuple

from blockdiff.text.stream import held_length
from blockdiff.text.tool_calls.call import (
    NotACallError,
    Offered,
    OpenBodyError,
    ToolCall,
    ToolForm,
)
from blockdiff.text.tool_calls.forms import FORMS

_TRAILING_NEWLINES = re.compile(r"\n*\Z")


class ParsedText(NamedTuple):
    text: str
    calls: list[ToolCall]
    has_malformed: bool = False
    """Whether ``text`` holds something that opened like a call and is none."""


class ToolCallParser:
    """Holds back a marker that is not complete yet and the call that it opens.

    ``offered`` None takes calls of any name; otherwise a call of another function is no call.
    Line breaks next to a call belong to it.
    """

    def __init__(self, form: ToolForm = FORMS["hermes"], offered: Offered | None = None) -> None:
        self._form = form
        self._offered = offered
        self._held = ""
        self._is_inside = False
        self._is_after_call = False
        self._body_start = 0
        self._first_end: int | None = None
        self._search_from = 0
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []
        self._has_malformed = False

    def push(self, text: str, final: bool = False) -> ParsedText:
        """Newly decided text and calls; ``final`` releases what is held back as text."""
        self._held += text
        self._texts, self._calls, self._has_malformed = [], [], False
        while self._advance() or (final and self._is_inside):
            if final and self._is_inside and not self._has_more_ends():
                self._release(len(self._held) if self._first_end is None else self._after_first())
        if final:
            if not self._is_after_call or self._held.strip("\n"):
                self._texts.append(self._held)
            self._held = ""
        return ParsedText("".join(self._texts), self._calls, self._has_malformed)

    def _advance(self) -> bool:
        """One step from marker to marker; False when more text is needed."""
        return self._close_call() if self._is_inside else self._open_call()

    def _open_call(self) -> bool:
        if self._is_after_call:
            self._held = self._held.lstrip("\n") or self._held
        start = self._held.find(self._form.start)
        if start >= 0:
            # The newlines before a call stay with it until it is known to be well formed.
            self._emit(len(self._held[:start].rstrip("\n")))
            self._body_start = self._held.index(self._form.start) + len(self._form.start)
            self._search_from, self._first_end = self._body_start, None
            self._is_inside = True
            return True
        settled = self._held[: len(self._held) - held_length(self._held, [self._form.start])]
        newlines = _TRAILING_NEWLINES.search(settled)
        self._emit(newlines.start() if newlines else 0)
        return False

    def _close_call(self) -> bool:
        end = self._held.find(self._form.end, self._search_from)
        if end < 0:
            self._search_from = max(self._body_start, len(self._held) - len(self._form.end) + 1)
            return False
        self._first_end = end if self._first_end is None else self._first_end
        try:
            call = self._read(end)
        except OpenBodyError:
            # The end marker stood inside a value: the call goes on.
            self._search_from = end + 1
            return True
        except NotACallError:
            self._release(self._after_first())
            return True
        self._calls.append(call)
        self._held = self._held[end + len(self._form.end) :]
        self._is_inside, self._is_after_call = False, True
        return True

    def _read(self, end: int) -> ToolCall:
        """The call whose end marker is at ``end``; raises NotACallError, OpenBodyError."""
        body = self._held[self._body_start : end]
        beyond = self._held[self._first_end : end]
        if self._form.start in beyond and self._form.has_raw_values(body):
            raise NotACallError("another call begins before this one is closed")
        name, arguments = self._form.read(body, self._offered)
        if not name or (self._offered is not None and name not in self._offered):
            raise NotACallError("not a function that was offered")
        return ToolCall(_sound(name), _sound(_as_json(arguments)))

    def _has_more_ends(self) -> bool:
        return self._held.find(self._form.end, self._search_from) >= 0

    def _after_first(self) -> int:
        assert self._first_end is not None
        return self._first_end + len(self._form.end)

    def _release(self, length: int) -> None:
        """Gives the held text up to ``length`` back as a call that is none."""
        self._has_malformed = True
        self._is_inside = False
        self._emit(length)

    def _emit(self, length: int) -> None:
        if length:
            self._texts.append(self._held[:length])
            self._held = self._held[length:]
            self._is_after_call = False


def _as_json(arguments: dict[str, Any]) -> str:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except RecursionError as error:
        raise NotACallError("nested too deep") from error


def _sound(text: str) -> str:
    """``text``, unless it cannot be sent: JSON may spell half a character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise NotACallError("half a character") from error
    return text
