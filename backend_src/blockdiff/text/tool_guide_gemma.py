"""Guides to calls in the form of Gemma 4, whose objects are not JSON.

Follows a schema's types, properties, enums, alternatives and local references; patterns, lengths
and bounds are not followed. Knows this one form only.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from blockdiff.text.tool_calls.gemma import QUOTE
from blockdiff.text.tool_calls.typed_values import local_part
from blockdiff.text.tool_guide_parts import IdOf, literal, marker

NOTHING = '""'
_MOST_DEEP = 12
_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_SCALARS = {"boolean": "GEMMA_FLAG", "null": '"null"', "integer": "GEMMA_WHOLE"}
_SCALARS |= {"number": "GEMMA_NUMBER", "string": "gemma_text"}
_TEXT = r"/(?s:.*)/ & ~/(?s:.*)<\|\"\|>(?s:.*)/"


def gemma_rules(number: int, function: Mapping[str, Any], id_of: IdOf) -> list[str]:
    """Rule ``call_NUMBER``: ``call:name{key:value,...}`` inside the markers, and what it needs."""
    rules = _Rules(f"gemma_{number}", function.get("parameters"), id_of)
    arguments = rules.object(rules.root, 0)
    begin, end = marker("<|tool_call>", id_of), marker("<tool_call|>", id_of)
    head = literal(f"call:{function['name']}")
    shared = _shared(id_of) if number == 0 else []
    return [f"call_{number}: {begin} {head} {arguments} {end}", *rules.lines, *shared]


def _shared(id_of: IdOf) -> list[str]:
    quote = marker(QUOTE, id_of)
    text = f"{quote} GEMMA_TEXT? {quote}"
    content = f"({_TEXT}) & /(?s:.+)/"
    if id_of(QUOTE) is None:
        # One terminal with both quotes: a lexer would run past the second and not come back.
        text, content = "GEMMA_TEXT", f"{quote} ({_TEXT}) {quote}"
    return [
        f"gemma_text: {text}",
        f"GEMMA_TEXT: {content}",
        "GEMMA_FLAG: /true|false/",
        "GEMMA_WHOLE: /-?(0|[1-9][0-9]{0,17})/",
        r"GEMMA_NUMBER: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?/",
        "GEMMA_KEY: /[A-Za-z_][A-Za-z0-9_]*/",
        'gemma_any: gemma_text | GEMMA_NUMBER | GEMMA_FLAG | "null" | gemma_list | gemma_object',
        'gemma_list: "[" (gemma_any ("," gemma_any)*)? "]"',
        'gemma_object: "{" (gemma_pair ("," gemma_pair)*)? "}"',
        'gemma_pair: GEMMA_KEY ":" gemma_any',
    ]


class _Rules:
    """Grows the rules of one function."""

    def __init__(self, prefix: str, schema: Any, id_of: IdOf) -> None:
        self.root: dict[str, Any] = dict(schema) if isinstance(schema, Mapping) else {}
        if not isinstance(self.root.get("properties"), Mapping):
            # arguments that the schema does not name would be nobody's
            self.root["properties"] = {}
        self.lines: list[str] = []
        self._prefix = prefix
        self._id_of = id_of

    def object(self, schema: Mapping[str, Any], depth: int) -> str:
        """Name of a rule for an object with the properties of ``schema``, in their order."""
        required = set(schema.get("required") or ())
        pairs = [
            (f"{self._key(key)} {self.value(own, depth + 1)}", key in required)
            for key, own in schema["properties"].items()
        ]
        return self._rule(f'"{{" {self._joined(pairs)} "}}"')

    def _joined(self, pairs: Sequence[tuple[str, bool]]) -> str:
        """``pairs`` with commas between those that are there; built from the last one on."""
        later = first = ""
        for text, is_required in reversed(pairs):
            alone, behind = f"{text} {later}", f'"," {text} {later}'
            if is_required:
                first = self._rule(alone)
                later = self._rule(behind)
            else:
                first = self._rule(f"{alone} | {first or NOTHING}")
                later = self._rule(f"{behind} | {later or NOTHING}")
        return first

    def value(self, schema: Any, depth: int) -> str:
        """Name of a rule, or of what all forms share, for a value of ``schema``."""
        if not isinstance(schema, Mapping) or depth > _MOST_DEEP:
            return "gemma_any"
        if isinstance(schema.get("$ref"), str):
            return self.value(local_part(schema["$ref"], self.root), depth + 1)
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(listed, list) and listed:
            return self._rule(" | ".join(self._fixed(item) for item in listed))
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and schema[key]:
                return self._rule(" | ".join(self.value(part, depth + 1) for part in schema[key]))
        named = schema.get("type")
        types = named if isinstance(named, list) else [named]
        return self._rule(" | ".join(self._typed(name, schema, depth) for name in types))

    def _typed(self, name: Any, schema: Mapping[str, Any], depth: int) -> str:
        if name == "object":
            is_open = not isinstance(schema.get("properties"), Mapping)
            return "gemma_object" if is_open else self.object(schema, depth)
        if name == "array":
            item = self.value(schema.get("items"), depth + 1)
            return f'"[" ({item} ("," {item})*)? "]"'
        return _SCALARS.get(str(name), "gemma_any")

    def _fixed(self, value: Any) -> str:
        """``value`` itself, written in this form."""
        if isinstance(value, str):
            quote = marker(QUOTE, self._id_of)
            return f"{quote} {literal(value)} {quote}" if value else f"{quote} {quote}"
        if isinstance(value, Mapping):
            items = [f"{self._key(key)} {self._fixed(item)}" for key, item in value.items()]
            return ' "," '.join(items).join(('"{" ', ' "}"'))
        if isinstance(value, list):
            return ' "," '.join(self._fixed(item) for item in value).join(('"[" ', ' "]"'))
        words = {True: "true", False: "false", None: "null"}
        is_word = value is None or isinstance(value, bool)
        return literal(words[value] if is_word else str(value))

    def _key(self, key: str) -> str:
        if _BARE_KEY.fullmatch(key):
            return literal(f"{key}:")
        quote = marker(QUOTE, self._id_of)
        return f'{quote} {literal(key)} {quote} ":"'

    def _rule(self, body: str) -> str:
        name = f"{self._prefix}_{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name
