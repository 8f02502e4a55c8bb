"""From offered tools and the choice among them to a guide that makes the answer call one.

Knows how families write calls; knows nothing of engines or of how a guide is enforced.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blockdiff.core import Guide, GuideKind
from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.text.tool_calls.typed_values import schema_types
from blockdiff.text.tool_guide_gemma import gemma_rules
from blockdiff.text.tool_guide_parts import IdOf, literal, marker

HERMES, QWEN_XML, LLADA2, GEMMA = "hermes", "qwen_xml", "llada2", "gemma"

LINE = "\n"
# Templates write JSON in one line; a model that may write any space between values may never end.
_AS_TRAINED = {
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
}
_XML_TAIL = '"\\n</parameter>\\n"'
_XML_TEXT = r"/(?s:.*)/ & ~/(?s:.*)<\/?(parameter|tool_call)(?s:.*)/"


def tool_guide(
    tools: Sequence[Mapping[str, Any]], named: str | None, form: str, id_of: IdOf
) -> Guide:
    """Guide to one or more calls of ``tools`` (OpenAI form), or to exactly one of ``named``.

    ``form``: how the model writes calls. Raises RequestError where ``named`` is not among the
    tools, UnsupportedError where the form is not known. ``think`` of the guide is left to the
    caller.
    """
    write = _FORMS.get(form)
    if write is None:
        raise UnsupportedError(
            f"tool_choice: calls of the form {form} cannot be required; give auto or none"
        )
    functions = [tool.get("function", tool) for tool in tools]
    if named is not None:
        functions = [function for function in functions if function["name"] == named]
        if not functions:
            names = ", ".join(str(tool.get("function", tool)["name"]) for tool in tools)
            raise RequestError(f"tool_choice: {named!r} is not among the tools; allowed: {names}")
    more = "" if named is not None else f" ({_BETWEEN[form]} call)*"
    calls = " | ".join(f"call_{number}" for number in range(len(functions)))
    lines = [f"start: call{more}", f"call: {calls}"]
    for number, function in enumerate(functions):
        lines += write(number, function, id_of)
    return Guide(GuideKind.TOOL_CALLS, "\n".join(lines) + "\n")


def _schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """What the arguments of ``function`` are: an object, and nothing that it does not name."""
    given = function.get("parameters")
    schema = dict(given) if isinstance(given, Mapping) else {}
    schema = {"additionalProperties": False, **schema, "type": "object", **_AS_TRAINED}
    return {**schema, "properties": schema.get("properties") or {}}


def _hermes(number: int, function: Mapping[str, Any], id_of: IdOf) -> list[str]:
    """``<tool_call>``, a JSON object of name and arguments, ``</tool_call>``, a line each."""
    name = json.dumps(function["name"], ensure_ascii=False)
    start = literal(f'\n{{"name": {name}, "arguments": ')
    begin, end = marker("<tool_call>", id_of), marker("</tool_call>", id_of)
    return [
        f'call_{number}: {begin} {start} arguments_{number} "}}\\n" {end}',
        f"arguments_{number}: %json {json.dumps(_schema(function))}",
    ]


def _qwen_xml(number: int, function: Mapping[str, Any], id_of: IdOf) -> list[str]:
    """``<function=name>`` and a ``<parameter=key>`` block for each argument, inside the markers.

    Strings are written as they are, all other values as JSON.
    """
    schema = _schema(function)
    required, names, lines = set(schema.get("required") or ()), [], []
    for place, (key, own) in enumerate(schema["properties"].items()):
        rule, value = f"parameter_{number}_{place}", f"value_{number}_{place}"
        lines.append(f"{rule}: {literal(f'<parameter={key}>' + LINE)} {value}")
        lines.append(f"{value}: {_xml_value(own, schema)}")
        names.append(rule if key in required else f"{rule}?")
    head = literal(f"\n<function={function['name']}>\n")
    begin, end = marker("<tool_call>", id_of), marker("</tool_call>", id_of)
    whole = f'call_{number}: {begin} {head} {" ".join(names)} "</function>\\n" {end}'
    # One terminal with the closing tag: a lexer would run past the tag and not come back.
    shared = [f"XML_TEXT: ({_XML_TEXT}) {_XML_TAIL}"] if number == 0 else []
    return [whole, *lines, *shared]


def _xml_value(own: Any, schema: Mapping[str, Any]) -> str:
    """A value and its closing tag, as ``tool_calls.qwen_xml`` reads them back."""
    options = own.get("enum") if isinstance(own, Mapping) else None
    if isinstance(options, list) and options and all(isinstance(o, str) for o in options):
        return " | ".join(f"{literal(option)} {_XML_TAIL}" for option in options)
    types = schema_types(own, schema)
    if not types or "string" in types:
        return "XML_TEXT"
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return f"%json {json.dumps({**shared, **own, **_AS_TRAINED})} {_XML_TAIL}"


# what stands between two calls
_BETWEEN = {HERMES: '"\\n"', QWEN_XML: '"\\n"', LLADA2: '"\\n"', GEMMA: ""}
_FORMS: dict[str, Callable[[int, Mapping[str, Any], IdOf], list[str]]] = {
    HERMES: _hermes,
    QWEN_XML: _qwen_xml,
    LLADA2: _hermes,
    GEMMA: gemma_rules,
}
