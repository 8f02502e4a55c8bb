"""From offered tools and the choice among them to a guide that makes the answer call one.

Knows how families write calls; knows nothing of engines or of how a guide is enforced.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blockdiff.core import Guide, GuideKind
from blockdiff.errors import RequestError, UnsupportedError

HERMES, QWEN_XML = "hermes", "qwen_xml"

# id of a control token by its spelling; None where the vocabulary has none
IdOf = Callable[[str], int | None]


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
    more = "" if named is not None else ' ("\\n" call)*'
    calls = " | ".join(f"call_{number}" for number in range(len(functions)))
    lines = [f"start: call{more}", f"call: {calls}"]
    for number, function in enumerate(functions):
        lines += write(number, function, id_of)
    return Guide(GuideKind.TOOL_CALLS, "\n".join(lines) + "\n")


def _marker(text: str, id_of: IdOf) -> str:
    token = id_of(text)
    return _literal(text) if token is None else f"<[{token}]>"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _schema(function: Mapping[str, Any]) -> dict[str, Any]:
    return dict(function.get("parameters") or {"type": "object", "properties": {}})


def _hermes(number: int, function: Mapping[str, Any], id_of: IdOf) -> list[str]:
    """``<tool_call>``, a JSON object of name and arguments, ``</tool_call>``, a line each."""
    name = json.dumps(function["name"], ensure_ascii=False)
    start = _literal(f'\n{{"name": {name}, "arguments": ')
    begin, end = _marker("<tool_call>", id_of), _marker("</tool_call>", id_of)
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
    for place, (key, own) in enumerate((schema.get("properties") or {}).items()):
        rule, value = f"parameter_{number}_{place}", f"value_{number}_{place}"
        head, tail = _literal(f"<parameter={key}>\n"), _literal("\n</parameter>\n")
        is_text = isinstance(own, Mapping) and own.get("type") == "string" and "enum" not in own
        lines.append(f"{rule}: {head} {'XML_TEXT' if is_text else value} {tail}")
        if not is_text:
            lines.append(f"{value}: %json {json.dumps(own)}")
        names.append(rule if key in required else f"{rule}?")
    head = _literal(f"\n<function={function['name']}>\n")
    begin, end = _marker("<tool_call>", id_of), _marker("</tool_call>", id_of)
    body = " ".join(names)
    whole = f'call_{number}: {begin} {head} {body} "</function>\\n" {end}'
    shared = ["XML_TEXT: /(?s:.*)/ & ~/(?s:.*)<\\/?parameter(?s:.*)/"] if number == 0 else []
    return [whole, *lines, *shared]


_FORMS: dict[str, Callable[[int, Mapping[str, Any], IdOf], list[str]]] = {
    HERMES: _hermes,
    QWEN_XML: _qwen_xml,
}
