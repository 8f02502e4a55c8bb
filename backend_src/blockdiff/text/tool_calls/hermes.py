"""The form of Hermes and Qwen3: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

Knows this one form only.
"""

from typing import Any

from blockdiff.text.tool_calls.call import NotACallError, Offered, strict_json


class Hermes:
    """A JSON object between the markers; ``arguments`` may be a JSON text that holds an object."""

    name = "hermes"
    start = "<tool_call>"
    end = "</tool_call>"
    is_confirmed = True

    def has_raw_values(self, body: str) -> bool:
        return False

    def read(self, body: str, offered: Offered | None) -> tuple[str, dict[str, Any]]:
        given = strict_json(body)
        if not isinstance(given, dict) or given.keys() != {"name", "arguments"}:
            raise NotACallError("not an object of name and arguments")
        name, arguments = given["name"], given["arguments"]
        if isinstance(arguments, str):
            arguments = strict_json(arguments)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise NotACallError("name is no string or arguments no object")
        return name, arguments
