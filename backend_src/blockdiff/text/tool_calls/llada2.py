"""The forms of the Ling models, from which LLaDA2 comes.

Ling 2.0 writes the JSON object of Hermes; its successors write
``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>``. No public
source shows a call of a LLaDA2 model itself, so both are read. Knows these forms only.
"""

import re
from typing import Any

from blockdiff.text.tool_calls.call import NotACallError, Offered, OpenBodyError, unique_keys
from blockdiff.text.tool_calls.hermes import Hermes
from blockdiff.text.tool_calls.typed_values import read_typed

_NAME = re.compile(r"\s*([^<>{}\s]+)\s*")
_KEY = re.compile(r"<arg_key>([^<>]+)</arg_key>\s*<arg_value>")
# A closing tag inside a value has something else behind it.
_VALUE_END = re.compile(r"</arg_value>\s*(?=<arg_key>|\Z)")


class Llada2:
    """JSON, or a name and pairs of tags; the tool's schema says what type a tagged value has."""

    name = "llada2"
    start = "<tool_call>"
    end = "</tool_call>"
    is_confirmed = False

    def __init__(self) -> None:
        self._json = Hermes()

    def has_raw_values(self, body: str) -> bool:
        return not body.lstrip().startswith("{")

    def read(self, body: str, offered: Offered | None) -> tuple[str, dict[str, Any]]:
        if not self.has_raw_values(body):
            return self._json.read(body, offered)
        head = _NAME.match(body)
        if head is None:
            raise NotACallError("no name")
        name, at = head.group(1), head.end()
        types = (offered or {}).get(name, {})
        pairs: list[tuple[str, Any]] = []
        while at < len(body):
            key = _KEY.match(body, at)
            if key is None:
                raise NotACallError("no pair of tags")
            closing = _VALUE_END.search(body, key.end())
            if closing is None:
                raise OpenBodyError
            value = read_typed(body[key.end() : closing.start()], types.get(key.group(1), ()))
            pairs.append((key.group(1), value))
            at = closing.end()
        return name, unique_keys(pairs)
