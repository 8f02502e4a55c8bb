"""Checks chat messages and tools and brings them into the form that chat templates expect.

Knows the OpenAI message form; knows nothing of templates, tokens or tensors.
"""

import json
from typing import Any

from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.serving.fields import MAX_MESSAGES, MAX_TOOLS
from blockdiff.serving.json_text import parse_json, refuse, shown
from blockdiff.serving.tool_history import link_results

ROLES = ("system", "developer", "user", "assistant", "tool")
_MESSAGE_KEYS = frozenset(
    {"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"}
)


def parse_messages(text: str) -> list[dict[str, Any]]:
    """The messages of a JSON text; every refusal names the message."""
    given = parse_json("messages", text)
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_MESSAGES:
        raise refuse("messages", text, f"a JSON list of 1 to {MAX_MESSAGES} messages")
    messages = [_message(f"messages[{index}]", item) for index, item in enumerate(given)]
    link_results(messages)
    return messages


def parse_tools(text: str) -> list[dict[str, Any]]:
    """The tools of a JSON text; empty when there are none."""
    given = parse_json("tools", text) if text.strip() else []
    if not isinstance(given, list) or len(given) > MAX_TOOLS:
        raise refuse("tools", text, f"a JSON list of up to {MAX_TOOLS} tools")
    names = set()
    for index, tool in enumerate(given):
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name or tool.get("type", "function") != "function":
            raise RequestError(
                f"tools[{index}]: got {shown(json.dumps(tool))}, allowed "
                '{"type": "function", "function": {"name": ...}}'
            )
        _check_parameters(f"tools[{index}].function.parameters", tool["function"].get("parameters"))
        if name in names:
            raise RequestError(f"tools[{index}]: got {shown(name)} twice, allowed once")
        names.add(name)
    return given


def _check_parameters(place: str, schema: Any) -> None:
    """Refuse what is no schema at all; what a schema may say is up to who uses it."""
    parts = schema if isinstance(schema, dict) else {}
    kinds = (("properties", dict, "an object"), ("required", list, "a list"))
    if schema is not None and not isinstance(schema, dict):
        raise refuse(place, json.dumps(schema), "a JSON schema of an object")
    for key, kind, allowed in kinds:
        if not isinstance(parts.get(key), kind | None):
            raise refuse(f"{place}.{key}", json.dumps(parts[key]), allowed)


def _message(place: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise refuse(place, json.dumps(message), "an object with role and content")
    role = message.get("role")
    if role not in ROLES:
        raise refuse(f"{place}.role", "nothing" if role is None else role, " or ".join(ROLES))
    unknown = [k for k, v in message.items() if k not in _MESSAGE_KEYS and v is not None]
    if unknown:
        raise UnsupportedError(f"{place}.{unknown[0]}: not supported; leave it out")
    checked = {"role": role, "content": _content(place, message)}
    for key in ("tool_call_id", "name", "reasoning_content"):
        if message.get(key) is not None:
            checked[key] = _text(f"{place}.{key}", message[key])
    if message.get("tool_calls"):
        checked["tool_calls"] = _tool_calls(place, role, message["tool_calls"])
    if role == "assistant" and "reasoning_content" not in checked:
        _split_reasoning(checked)
    return checked


def _content(place: str, message: dict[str, Any]) -> str:
    content = message.get("content")
    if (
        content is None
        and message["role"] == "assistant"
        and (message.get("tool_calls") or message.get("reasoning_content"))
    ):
        return ""
    if not isinstance(content, list):
        return _text(f"{place}.content", content)
    # Joined here, so that no control-token spelling can arise between two parts later.
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise UnsupportedError(
                f"{place}.content[{index}]: got type {shown(str(kind))}, allowed text"
            )
        texts.append(_text(f"{place}.content[{index}].text", part.get("text")))
    return "".join(texts)


def _text(place: str, value: Any) -> str:
    if not isinstance(value, str):
        raise refuse(place, "nothing" if value is None else json.dumps(value), "a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise refuse(place, f"\\u{ord(value[error.start]):04x}", "UTF-8 text") from error
    return value


def _tool_calls(place: str, role: str, calls: Any) -> list[dict[str, Any]]:
    if role != "assistant" or not isinstance(calls, list):
        raise refuse(f"{place}.tool_calls", json.dumps(calls), "a list, in assistant messages")
    checked = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise refuse(
                f"{place}.tool_calls[{index}]", json.dumps(call), "an object with function.name"
            )
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = parse_json(f"{place}.tool_calls[{index}].function.arguments", arguments)
        if not isinstance(arguments, dict):
            raise refuse(
                f"{place}.tool_calls[{index}].function.arguments",
                json.dumps(arguments),
                "a JSON object",
            )
        named = {"name": function["name"], "arguments": arguments}
        checked.append({"id": str(call.get("id") or ""), "type": "function", "function": named})
    return checked


def _split_reasoning(message: dict[str, Any]) -> None:
    """Moves a think block out of the text: templates keep or drop reasoning by its own field."""
    head, mark, tail = message["content"].rpartition("</think>")
    if mark:
        message["reasoning_content"] = head.rpartition("<think>")[2].strip("\n")
        message["content"] = tail.lstrip("\n")
