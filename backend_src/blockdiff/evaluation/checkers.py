"""Exact checkers of ``blockdiff eval``: does an output answer its prompt?

Knows texts only: nothing of models, tokens or prompts.
"""

import json
import re
from collections.abc import Callable
from typing import Any

THINK_END = "</think>"
_TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def is_exact(output: str, expected: str) -> bool:
    return output.strip() == expected.strip()


def is_same_tool_call(output: str, expected: str) -> bool:
    """Same function name and arguments, however the JSON is written; nothing around the call."""
    got, wanted = _tool_call(output), _tool_call(expected)
    return got is not None and got == wanted


def is_same_final_answer(output: str, expected: str) -> bool:
    """Same text after the thinking; an output that never ends its thinking has no answer."""
    if THINK_END not in output:
        return False
    return _after_thinking(output) == _after_thinking(expected)


CHECKERS: dict[str, Callable[[str, str], bool]] = {
    "exact": is_exact,
    "tool_call": is_same_tool_call,
    "final_answer": is_same_final_answer,
}


def _after_thinking(text: str) -> str:
    return text.rpartition(THINK_END)[2].strip()


def _tool_call(text: str) -> tuple[str, Any] | None:
    text = _after_thinking(text)
    found = _TOOL_CALL.fullmatch(text)
    try:
        call = json.loads(found.group(1) if found else text)
    except json.JSONDecodeError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return call["name"], call.get("arguments")
