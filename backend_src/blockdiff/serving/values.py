"""Reads raw request values (tensors, JSON, parameters) into Python values, field by field.

Every refusal names the field, the value and what is allowed. Knows the field table; knows nothing
of how fields depend on each other.
"""

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.serving.fields import (
    BY_NAME,
    CANONICAL,
    KNOWN_ELSEWHERE,
    MAX_LIST_ITEMS,
    Field,
    Kind,
)
from blockdiff.serving.json_text import parse_json, refuse, shown

# Names of parameters that Triton, its forwarded headers and tracing put beside a request.
NOT_OURS = (
    *("triton_", "sequence_", "blockdiff_", "priority", "timeout", "headers", "binary_data"),
    *("x-", "x_", "trace"),
)


def merge_values(
    tensors: Mapping[str, NDArray[Any]],
    parameters: Mapping[str, Any],
    limits: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """All given values by canonical field name, checked; refused fields are dropped when neutral.

    Tensors win over sampling_parameters over Triton request parameters. ``limits`` lowers the
    upper end of some fields.
    """
    from_tensors = {name: tensor_value(name, array) for name, array in tensors.items()}
    from_json = _json_fields(from_tensors.pop("sampling_parameters", ""))
    merged = _canonical(_known_parameters(parameters))
    merged.update(_canonical(from_json))
    merged.update(_canonical(from_tensors))
    checked = {}
    for name, value in merged.items():
        field = BY_NAME[name]
        if field.is_refused:
            _require_neutral(field, value)
        else:
            checked[name] = check_value(field, value, (limits or {}).get(name))
    return checked


def tensor_value(name: str, array: NDArray[Any]) -> Any:
    """The Python value of one input tensor; a list for list fields."""
    field = BY_NAME[CANONICAL[name]]
    if field.is_list and array.size > MAX_LIST_ITEMS:
        raise refuse(name, f"{array.size} elements", f"up to {MAX_LIST_ITEMS} elements")
    items = [_element(name, item) for item in array.reshape(-1).tolist()]
    if field.is_list:
        return items
    if len(items) != 1:
        raise RequestError(f"{name}: got shape {list(array.shape)}, allowed one element")
    return items[0]


def check_value(field: Field, value: Any, limit: float | None = None) -> Any:
    """``value`` in the field's own type, or a refusal; ``limit`` lowers the field's upper end."""
    if field.is_list:
        items = value if isinstance(value, list) else [value]
        _check_count(field, items)
        element = replace(field, is_list=False)
        return [check_value(element, item) for item in items]
    if field.kind is Kind.STRING:
        return _check_text(field, value)
    if field.kind is Kind.BOOL:
        return _check_flag(field, value)
    number = _number(field, value)
    if field.kind is not Kind.FP32:
        if number != int(number):
            raise refuse(field.name, value, f"a whole number, {field.allowed()}")
        number = int(number)
    high = field.high if limit is None else limit
    is_low = field.low is not None and (number < field.low or _is_excluded(field, number))
    if is_low or high is not None and number > high:
        raise refuse(field.name, value, field.allowed(limit))
    return number


def _is_excluded(field: Field, number: float | int) -> bool:
    return field.is_low_excluded and number == field.low


def _element(name: str, item: Any) -> Any:
    if not isinstance(item, bytes):
        return item
    try:
        return item.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{name}: got byte 0x{item[error.start]:02x} at position {error.start}, "
            "allowed UTF-8 text"
        ) from error


def _check_count(field: Field, items: list[Any]) -> None:
    if len(items) > MAX_LIST_ITEMS:
        raise refuse(field.name, f"{len(items)} elements", f"up to {MAX_LIST_ITEMS} elements")


def _check_text(field: Field, value: Any) -> str:
    if not isinstance(value, str):
        # given as a JSON value inside sampling_parameters
        if field.is_json and isinstance(value, list | dict):
            return json.dumps(value)
        raise refuse(field.name, value, field.allowed())
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise refuse(field.name, f"\\u{ord(value[error.start]):04x}", "UTF-8 text") from error
    if field.choices and value not in field.choices:
        raise refuse(field.name, value, field.allowed())
    return value


def _check_flag(field: Field, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise refuse(field.name, value, field.allowed())


def _number(field: Field, value: Any) -> float | int:
    if isinstance(value, str):
        try:
            value = int(value) if field.kind is not Kind.FP32 else float(value)
        except ValueError:
            raise refuse(field.name, value, field.allowed()) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse(field.name, value, field.allowed())
    if isinstance(value, float) and not math.isfinite(value):
        raise refuse(field.name, value, field.allowed())
    return value


def _json_fields(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    given = parse_json("sampling_parameters", text)
    if not isinstance(given, dict):
        raise refuse("sampling_parameters", text, "a JSON object")
    for name in given:
        if name not in CANONICAL or name == "sampling_parameters":
            raise _unknown(f"sampling_parameters.{shown(name)}", name)
    return {name: value for name, value in given.items() if value is not None}


def _known_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Request parameters that are fields; unknown ones are refused, Triton's own passed over.

    `/generate` turns every key of a body that is no input into a parameter, misspellings included.
    """
    known = {}
    for name, value in parameters.items():
        if name in CANONICAL and name != "sampling_parameters":
            known[name] = value
        elif not name.lower().startswith(NOT_OURS):
            raise _unknown(f"parameter {shown(name)}", name)
    return known


def _unknown(label: str, name: str) -> RequestError:
    close = difflib.get_close_matches(name, CANONICAL, 1, 0.7)
    if close:
        return RequestError(f"{label}: unknown, did you mean {close[0]}?")
    if name in KNOWN_ELSEWHERE:
        return UnsupportedError(f"{label}: not supported; leave it out")
    return RequestError(f"{label}: unknown, allowed {', '.join(sorted(BY_NAME))}")


def _canonical(given: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in given.items():
        field = CANONICAL[name]
        if field in values and values[field] != value:
            raise RequestError(f"{name}: got {shown(value)} together with another {field}")
        values[field] = value
    return values


def _require_neutral(field: Field, value: Any) -> None:
    items = value if isinstance(value, list) else [value]
    if any(item not in field.neutral for item in items):
        neutral = " or ".join(shown(item) for item in field.neutral)
        raise UnsupportedError(
            f"{field.name}: got {shown(value)}, not supported by this model; "
            f"leave it out or give {neutral}"
        )
