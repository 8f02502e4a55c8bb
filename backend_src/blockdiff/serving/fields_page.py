"""docs/fields.md as text, from the table. Knows Markdown; reads and writes no file."""

from collections.abc import Iterator

from blockdiff.serving.fields import GROUPS, OUTPUTS, Field
from blockdiff.serving.fields.kinds import Kind
from blockdiff.serving.rules import PRECEDENCE, RULES

_INTRODUCTION = """\
# Every field

Written by `python scripts/write_fields.py` from the table in `blockdiff.serving.fields`; a test
compares them. All fields are optional but for one of `text_input` and `messages`. What a model, an
algorithm or another field of the request leaves no room for is refused in one line that names the
field; nothing is ignored.

A field comes as a tensor `[1, 1]` (`[1, n]` where the type says `[-1]`), as a key of
`sampling_parameters`, or as a request parameter; of several, the first in this order counts. A list
is one JSON list inside `sampling_parameters`. A default of "-" leaves the choice to the model or
the server.
"""


def page() -> str:
    """The whole page."""
    return "\n".join((_INTRODUCTION, *_inputs(), *_rules(), *_outputs()))


def _inputs() -> Iterator[str]:
    for title, fields in GROUPS.items():
        yield f"## {title}\n"
        yield "| field | type | allowed | default | honoured by | meaning |"
        yield "|---|---|---|---|---|---|"
        yield from (_row(field) for field in fields)
        yield ""


def _rules() -> Iterator[str]:
    yield "## What goes together\n"
    yield "Refused, whatever the model:\n"
    yield "| field | allowed |"
    yield "|---|---|"
    yield from (f"| `{rule.field}` | {rule.allowed} |" for rule in RULES)
    yield "\nAccepted, and what holds then:\n"
    yield "| field | what holds |"
    yield "|---|---|"
    yield from (f"| `{name}` | {text} |" for name, text in PRECEDENCE)
    yield ""


def _outputs() -> Iterator[str]:
    yield "## Outputs\n"
    yield "| output | type | meaning |"
    yield "|---|---|---|"
    for output in OUTPUTS:
        yield f"| `{output.name}` | {_kind(output.kind, output.is_list)} | {output.meaning} |"
    yield ""


def _row(field: Field) -> str:
    names = " ".join(f"`{name}`" for name in (field.name, *field.aliases))
    kind = _kind(field.kind, field.is_list)
    if field.is_refused:
        neutral = " or ".join(_value(value) for value in field.neutral)
        return f"| {names} | {kind} | {neutral} | - | none | {field.meaning} |"
    allowed = " or ".join(f"`{c}`" for c in field.choices) or field.allowed()
    return (
        f"| {names} | {kind} | {allowed} | {_value(field.default)} | {field.honoured_by} "
        f"| {field.meaning} |"
    )


def _kind(kind: Kind, is_list: bool) -> str:
    return kind.value.removeprefix("TYPE_") + ("[-1]" if is_list else "")


def _value(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else f"`{value}`" if value == "" else str(value)
