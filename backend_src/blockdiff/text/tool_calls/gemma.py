"""The form of Gemma 4 and DiffusionGemma: ``<|tool_call>call:NAME{key:value,...}<tool_call|>``.

Keys are bare, strings stand between two ``<|"|>`` as they are, everything else is as in JSON.
Knows this one form only.
"""

import re
from typing import Any

from blockdiff.text.tool_calls.call import (
    NotACallError,
    Offered,
    OpenBodyError,
    finite,
    unique_keys,
)

QUOTE = '<|"|>'
_MOST_DEEP = 100
_HEAD = re.compile(r"\s*call:\s*([^\s{}<>\"]+)\s*(?=\{)")
_SPACE = re.compile(r"\s*")
_KEY = re.compile(r"[^\s:,{}\[\]<>\"]+")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}


class Gemma:
    """A name and an object with bare keys."""

    name = "gemma"
    start = "<|tool_call>"
    end = "<tool_call|>"
    is_confirmed = True

    def has_raw_values(self, body: str) -> bool:
        return False

    def read(self, body: str, offered: Offered | None) -> tuple[str, dict[str, Any]]:
        head = _HEAD.match(body)
        if head is None:
            raise NotACallError("no call and name")
        reader = _Reader(body, head.end())
        arguments = reader.read_object(0)
        if not reader.is_at_end():
            raise NotACallError("text behind the arguments")
        return head.group(1), arguments


class _Reader:
    """Reads values from a place in a text on."""

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self._at = at

    def is_at_end(self) -> bool:
        self._skip_space()
        return self._at == len(self._text)

    def read_object(self, depth: int) -> dict[str, Any]:
        self._expect("{")
        pairs: list[tuple[str, Any]] = []
        while not self._take("}"):
            if pairs:
                self._expect(",")
            key = self._read_key()
            self._expect(":")
            pairs.append((key, self._read_value(depth + 1)))
        return unique_keys(pairs)

    def _read_list(self, depth: int) -> list[Any]:
        self._expect("[")
        items: list[Any] = []
        while not self._take("]"):
            if items:
                self._expect(",")
            items.append(self._read_value(depth + 1))
        return items

    def _read_value(self, depth: int) -> Any:
        if depth > _MOST_DEEP:
            raise NotACallError("nested too deep")
        self._skip_space()
        if self._text.startswith("{", self._at):
            return self.read_object(depth)
        if self._text.startswith("[", self._at):
            return self._read_list(depth)
        if self._take(QUOTE):
            return self._rest_of_string()
        return self._read_scalar()

    def _read_key(self) -> str:
        self._skip_space()
        if self._take(QUOTE):
            return self._rest_of_string()
        return self._match(_KEY).group()

    def _rest_of_string(self) -> str:
        end = self._text.find(QUOTE, self._at)
        if end < 0:
            raise OpenBodyError
        value = self._text[self._at : end]
        self._at = end + len(QUOTE)
        return value

    def _read_scalar(self) -> Any:
        found = self._match(_SCALAR)
        text = found.group()
        if text in _WORDS:
            return _WORDS[text]
        try:
            return finite(text) if found.group(1) or found.group(2) else int(text)
        except ValueError as error:
            raise NotACallError(str(error)) from error

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise NotACallError(f"at character {self._at}")
        self._at = found.end()
        return found

    def _take(self, text: str) -> bool:
        self._skip_space()
        is_there = self._text.startswith(text, self._at)
        self._at += len(text) if is_there else 0
        return is_there

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise NotACallError(f"no {text} at character {self._at}")

    def _skip_space(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
