"""The form of Qwen3.5 and Qwen3.6: tags for the function and for each of its parameters.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

Strings stand there as they are, other values as JSON. Knows this one form only.
"""

import re
from typing import Any

from blockdiff.text.tool_calls.call import NotACallError, Offered, OpenBodyError, unique_keys
from blockdiff.text.tool_calls.typed_values import read_typed

_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>")
_FUNCTION_END = re.compile(r"</function>\s*\Z")
# A closing tag inside a value has something else behind it.
_VALUE_END = re.compile(r"</parameter>\s*(?=<parameter=[^<>\n]+>|</function>)")


class QwenXml:
    """A function tag around parameter tags; the tool's schema says what type a value has."""

    name = "qwen_xml"
    start = "<tool_call>"
    end = "</tool_call>"
    is_confirmed = True

    def has_raw_values(self, body: str) -> bool:
        return True

    def read(self, body: str, offered: Offered | None) -> tuple[str, dict[str, Any]]:
        head = _FUNCTION.match(body)
        if head is None:
            raise NotACallError("no function tag")
        name, at = head.group(1), head.end()
        types = (offered or {}).get(name, {})
        pairs: list[tuple[str, Any]] = []
        while not _FUNCTION_END.match(body, at):
            parameter = _PARAMETER.match(body, at)
            if parameter is None:
                raise NotACallError("neither a parameter nor the end of the function")
            closing = _VALUE_END.search(body, parameter.end())
            if closing is None:
                raise OpenBodyError
            text = without_outer_breaks(body[parameter.end() : closing.start()])
            key = parameter.group(1)
            pairs.append((key, read_typed(text, types.get(key, ()))))
            at = closing.end()
        return name, unique_keys(pairs)


def without_outer_breaks(text: str) -> str:
    """``text`` without the one line break that tags have on either side of a value."""
    return text.removeprefix("\n").removesuffix("\n")
