"""What all forms of tool calls share: the call itself, how a form is read, strict JSON.

Knows nothing of any one form.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Offered = Mapping[str, Mapping[str, Sequence[str]]]
"""The functions a request offers: for each its parameters, for each of those its JSON types."""


class ToolCall(NamedTuple):
    name: str
    arguments: str
    """A JSON object, as text."""


class NotACallError(Exception):
    """The text between the markers is no call."""


class OpenBodyError(Exception):
    """The text ends inside a value, so the end marker behind it is part of that value."""


class ToolForm(Protocol):
    """One way of writing a call between two markers."""

    name: str
    start: str
    end: str
    is_confirmed: bool
    """Whether a public template or parser of these models shows the form."""

    def has_raw_values(self, body: str) -> bool:
        """Whether values stand in ``body`` as they are, so that they may look like markers."""
        ...

    def read(self, body: str, offered: Offered | None) -> tuple[str, dict[str, Any]]:
        """Name and arguments of the call in ``body``; raises NotACallError, OpenBodyError."""
        ...


def strict_json(text: str) -> Any:
    """The value of ``text``: no NaN, no number beyond float64, no key twice in an object.

    Line breaks inside strings are accepted. Raises OpenBodyError where a string is not closed,
    NotACallError for anything else that is no JSON.
    """
    try:
        return json.loads(
            text,
            strict=False,
            object_pairs_hook=unique_keys,
            parse_constant=_no_constant,
            parse_float=finite,
        )
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            raise OpenBodyError from error
        raise NotACallError(error.msg) from error
    except (ValueError, RecursionError) as error:
        raise NotACallError(str(error)) from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of ``pairs``; a key given twice would lose a value, so it makes no call."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise NotACallError("a key twice")
    return made


def finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise NotACallError("a number out of range")
    return value


def _no_constant(text: str) -> Any:
    raise NotACallError(text)
