"""Text of fields: how refusals show values, and how JSON is read.

Knows no field.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from blockdiff.errors import RequestError

_SHOWN_CHARACTERS = 60
# Far beyond any tool schema; templates and their filters walk values recursively.
MAX_JSON_DEPTH = 100


def shown(value: object) -> str:
    """A value as error messages show it: short, on one line, printable."""
    if isinstance(value, str):
        cut = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "..."
        return json.dumps(cut)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.7g}"
    return str(value)[:_SHOWN_CHARACTERS]


def refuse(name: str, value: object, allowed: str) -> RequestError:
    return RequestError(f"{name}: got {shown(value)}, allowed {allowed}")


def parse_json(name: str, text: str) -> Any:
    """Strict JSON: no NaN, no key twice, no deep nesting; the refusal says where it went wrong."""

    def no_constant(constant: str) -> None:
        raise refuse(name, constant, "JSON without NaN and Infinity")

    def no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        given = dict(pairs)
        if len(given) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise RequestError(f"{name}: got {shown(twice)} twice, allowed once in an object")
        return given

    try:
        given = json.loads(text, parse_constant=no_constant, object_pairs_hook=no_doubles)
    except json.JSONDecodeError as error:
        raise RequestError(
            f"{name}: got {shown(text)}, allowed JSON ({error.msg} at character {error.pos})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"{name}: got {shown(text)}, allowed JSON of ordinary depth and numbers"
        ) from error
    if _is_deeper(given, MAX_JSON_DEPTH):
        raise refuse(name, text, f"JSON nested at most {MAX_JSON_DEPTH} deep")
    return given


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        if not level:
            return False
        level = [child for item in level for child in _children(item)]
    return bool(level)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
