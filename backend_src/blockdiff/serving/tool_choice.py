"""What a request says of its tools: whether calls may, must or must not be made.

Knows the fields ``tools`` and ``tool_choice``; knows nothing of templates and of how a form is
written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from blockdiff.core import Guide
from blockdiff.errors import RequestError
from blockdiff.serving.json_text import parse_json, refuse
from blockdiff.text import ThinkState, Tokenizer
from blockdiff.text.tool_guides import tool_guide

WORDS = ("none", "auto", "required")
ALLOWED = 'none, auto, required or {"type": "function", "function": {"name": ...}}'


class ToolChoice(NamedTuple):
    """The tools a request offers, after its choice: none of them are left where it says none."""

    tools: Sequence[Mapping[str, Any]] = ()
    is_required: bool = False
    """Whether the answer has to be calls, and nothing else."""
    named: str | None = None
    """The only function that may be called, exactly once."""


def choose_tools(given: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    """Raises RequestError where the choice is no choice or contradicts another field."""
    text = given.get("tool_choice", "").strip()
    if text in ("", "auto", "none"):
        if text == "auto" and not tools:
            raise refuse("tool_choice", text, "none without tools")
        return ToolChoice() if text == "none" else ToolChoice(tools)
    named = None if text == "required" else _named(text)
    if not tools:
        raise refuse("tool_choice", text, "none without tools")
    names = [tool["function"]["name"] for tool in tools]
    if named is not None and named not in names:
        raise refuse("tool_choice", named, f"a name among the tools ({', '.join(names)})")
    for other in ("guided_decoding_guide_type", "guided_decoding_guide"):
        if given.get(other):
            raise refuse("tool_choice", text, f"none or auto together with {other}")
    return ToolChoice(tools, True, named)


def required_calls(
    choice: ToolChoice, form: str, tokenizer: Tokenizer, think: ThinkState
) -> Guide | None:
    """The guide that makes an answer call what has to be called; None: nothing has to be.

    ``form``: how the model writes calls. ``think``: what the prompt says of thinking.
    """
    if not choice.is_required:
        return None
    guide = tool_guide(choice.tools, choice.named, form, tokenizer.id_of)
    return replace(guide, think=think.value)


def _named(text: str) -> str:
    if not text.startswith("{"):
        raise refuse("tool_choice", text, ALLOWED)
    given = parse_json("tool_choice", text)
    function = given.get("function") if given.keys() == {"type", "function"} else None
    name = function.get("name") if isinstance(function, dict) and len(function) == 1 else None
    if not isinstance(name, str) or given["type"] != "function":
        raise RequestError(f"tool_choice: got another object, allowed {ALLOWED}")
    return name
