"""Values that a form writes as bare text: which JSON types a tool allows, and reading by them.

Knows JSON schema as far as types go; knows nothing of markers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from blockdiff.text.tool_calls.call import NotACallError, OpenBodyError, strict_json

_MOST_STEPS = 64
_WORDS = {"true": True, "false": False, "null": None, "none": None}


def offered_types(tools: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """For each function of ``tools`` (OpenAI form) the JSON types of each of its parameters.

    A parameter whose schema names no type has an empty list.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for tool in tools:
        function = tool["function"]
        schema = function.get("parameters")
        properties = schema.get("properties") if isinstance(schema, dict) else None
        found[function["name"]] = {
            name: schema_types(part, schema)
            for name, part in (properties if isinstance(properties, dict) else {}).items()
        }
    return found


def read_typed(text: str, types: Sequence[str]) -> Any:
    """``text`` as a value of one of ``types``; the text itself where it is none of them.

    A value that may be a string and something else is the something else where it reads as that.
    """
    others = [name for name in types if name != "string"]
    word = text.strip().lower()
    if word in _WORDS and _kind(_WORDS[word]) in others:
        # some templates show booleans as Python writes them
        return _WORDS[word]
    if not others or not text.strip():
        return text
    try:
        value = strict_json(text)
    except (NotACallError, OpenBodyError):
        return text
    kind = _kind(value)
    if kind in others or (kind == "integer" and "number" in others):
        return value
    if isinstance(value, float) and value.is_integer() and "integer" in others:
        return int(value)
    return text


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
    }
    return names[type(value)]


def schema_types(schema: Any, root: Any) -> list[str]:
    """The types that ``schema`` allows, in the order it names them."""
    found: dict[str, None] = {}
    waiting = [schema]
    for _ in range(_MOST_STEPS):
        if not waiting:
            break
        part = waiting.pop(0)
        if not isinstance(part, dict):
            continue
        named = part.get("type", [])
        listed = named if isinstance(named, list) else [named]
        found.update((name, None) for name in listed if isinstance(name, str))
        if not listed:
            values = [*_listed(part, "enum"), *([part["const"]] if "const" in part else [])]
            found.update((_kind(value), None) for value in values)
        for key in ("anyOf", "oneOf", "allOf"):
            waiting += _listed(part, key)
        if isinstance(part.get("$ref"), str):
            waiting.append(local_part(part["$ref"], root))
    return list(found)


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def local_part(reference: str, root: Any) -> Any:
    """The part of ``root`` that a reference inside it names; None for any other reference."""
    head, *names = reference.split("/")
    found = root if head == "#" else None
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found
