"""How much one rendering of a chat template may do, and the operations that could do too much.

Every loop step and macro call counts and looks at the time; what makes text or lists from others is
measured before it runs. So a rendering ends in bounded time and memory, whatever its template says.
Knows nothing of how templates are compiled.
"""

import time
from collections.abc import Mapping
from typing import Any

from jinja2.runtime import Context

from blockdiff.errors import RequestError

MAX_SECONDS = 2.0
MAX_STEPS = 1_000_000
MAX_RANGE = 100_000
# Characters of one text; an element of a list counts as many as it takes bytes.
MAX_SIZE = 16 << 20
MAX_MADE = 512 << 20
ELEMENT = 16
# Most bits of a number, most digits of a width, most spaces of an indent
MAX_BITS = 4096
MAX_WIDTH = 100_000

BUDGET = "budget!"
"""Under which a rendering's context has its ``Budget``: no template can spell it."""

# Methods that templates may call of texts, numbers, lists and objects; all others are refused.
READING_METHODS = frozenset(
    (
        *(
            "count",
            "endswith",
            "find",
            "get",
            "index",
            "isalnum",
            "isalpha",
            "isdecimal",
            "isdigit",
        ),
        *("islower", "isnumeric", "isspace", "istitle", "isupper", "items", "keys", "rfind"),
        *("rindex", "startswith", "values"),
    )
)
MAKING_METHODS = frozenset(
    (
        *("capitalize", "casefold", "copy", "format", "join", "lower", "lstrip", "partition"),
        *("removeprefix", "removesuffix", "replace", "rpartition", "rsplit", "rstrip", "split"),
        *("splitlines", "strip", "swapcase", "title", "upper"),
    )
)
METHODS = READING_METHODS | MAKING_METHODS


class Budget:
    """What is left to one rendering."""

    def __init__(self) -> None:
        self._give_up_at = time.monotonic() + MAX_SECONDS
        self._steps = MAX_STEPS
        self._range = MAX_RANGE
        self._made = MAX_MADE

    def step(self) -> None:
        """One more loop step or macro call."""
        self._steps -= 1
        if self._steps < 0:
            raise RequestError(f"messages: the chat template takes more than {MAX_STEPS} steps")
        if time.monotonic() > self._give_up_at:
            raise RequestError(f"messages: the chat template takes more than {MAX_SECONDS:g} s")

    def make(self, size: int) -> None:
        """Room for something of ``size``, as ``measure`` counts, that is about to be made."""
        self._made -= size
        if size > MAX_SIZE or self._made < 0:
            raise RequestError(
                f"messages: the chat template asks for more than {MAX_SIZE} characters at once or "
                f"{MAX_MADE} in all"
            )

    def range(self, *bounds: int) -> range:
        """``range`` whose total over one rendering is bounded."""
        steps = range(*bounds)
        self._range -= len(steps)
        if self._range < 0:
            raise RequestError(f"messages: the chat template loops over {MAX_RANGE} steps")
        return steps


def budget_of(context: Context) -> Budget:
    """The budget of the rendering that ``context`` belongs to."""
    found = context.get(BUDGET)
    assert isinstance(found, Budget), "every rendering has one"
    return found


def measure(value: Any, limit: int = MAX_SIZE) -> int:
    """How large ``value`` is as text, shared parts each time; no more than just above ``limit``."""
    if isinstance(value, str | bytes):
        return len(value) + 2
    if isinstance(value, int) and not isinstance(value, bool):
        return value.bit_length() // 3 + 2
    if isinstance(value, Mapping):
        items: Any = (part for pair in value.items() for part in pair)
    elif isinstance(value, list | tuple):
        items = value
    else:
        return ELEMENT
    size = ELEMENT
    for item in items:
        size += ELEMENT + measure(item, limit - size)
        if size > limit:
            break
    return size


def _refuse_width(value: Any) -> int:
    if isinstance(value, int) and abs(value) > MAX_WIDTH:
        raise RequestError(f"messages: the chat template asks for a width of {value}")
    return int(value) if isinstance(value, int) else 0


def size_of_format(pattern: Any, values: Any) -> int:
    """Most that ``pattern`` makes of ``values``: every character of it may show all of them."""
    text = str(pattern)
    digits = "".join(c if c.isdigit() else " " for c in text).split()
    widest = max((int(number) for number in digits if len(number) < 9), default=0)
    if any(len(number) >= 9 for number in digits):
        raise RequestError("messages: the chat template asks for a width of 9 digits")
    numbers = values.values() if isinstance(values, Mapping) else values
    given = max((_refuse_width(v) for v in numbers), default=0) if "*" in text or "{" in text else 0
    fields = text.count("%") + text.count("{")
    return len(text) + fields * (measure(values) + widest + given)


def size_of_replace(text: Any, old: Any, new: Any) -> int:
    count = str(text).count(str(old))
    return len(str(text)) + count * len(str(new))


def size_of_join(parts: Any, separator: Any = "") -> int:
    return measure(parts) + len(parts) * len(str(separator))


def size_of_indent(text: Any, width: Any = 4) -> int:
    spaces = len(width) if isinstance(width, str) else _refuse_width(width)
    lines = str(text).count("\n") + 1
    return len(str(text)) + lines * spaces


def size_of_json(value: Any, indent: Any = None) -> int:
    size = 2 * measure(value)
    if indent is None:
        return size
    spaces = len(indent) if isinstance(indent, str) else _refuse_width(indent)
    return size + spaces * _sum_of_depths(value, 1, MAX_SIZE)


def _sum_of_depths(value: Any, depth: int, limit: int) -> int:
    """Levels above the elements of ``value``, all added up; no more than just above ``limit``."""
    elements: Any = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, str) or not isinstance(value, Mapping | list | tuple):
        return 0
    total = depth
    for element in elements:
        total += depth + _sum_of_depths(element, depth + 1, limit - total)
        if total > limit:
            break
    return total


def size_of_copy(value: Any, *_: Any, **__: Any) -> int:
    """What a text or list as long as ``value`` takes, whose elements are not copied."""
    if isinstance(value, str | bytes):
        return len(value)
    return ELEMENT * len(value) if isinstance(value, Mapping | list | tuple) else ELEMENT


def size_of_list(value: Any) -> int:
    return ELEMENT * (1 + (len(value) if hasattr(value, "__len__") else 0))


def size_of_parts(text: Any, separator: Any = None, *_: Any, **__: Any) -> int:
    """What the parts of ``text`` between separators take."""
    marks = [separator] if isinstance(separator, str) and separator else [" ", "\n", "\t", "\r"]
    return len(text) + ELEMENT * (1 + sum(text.count(mark) for mark in marks))


def check_numbers(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation on numbers whose result has very many digits."""
    if not (isinstance(left, int) and isinstance(right, int)):
        return
    bits = left.bit_length() + right.bit_length()
    if operator == "**" and right > 1:
        bits = left.bit_length() * right
    if operator in ("*", "**") and bits > MAX_BITS:
        raise RequestError(f"messages: the chat template asks for {operator} by {right}")


def size_of_operation(operator: str, left: Any, right: Any) -> int:
    """What ``left operator right`` makes of texts and lists; 0 for numbers."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        return 0
    if operator == "*":
        things, count = (right, left) if isinstance(left, int) else (left, right)
        return size_of_copy(things) * max(int(count), 0) if isinstance(count, int) else 0
    if operator == "%" and isinstance(left, str):
        return size_of_format(left, right if isinstance(right, tuple | dict) else (right,))
    if operator == "+":
        return size_of_copy(left) + size_of_copy(right)
    return 0
