"""How much one rendering of a chat template may do, and the operations that could do too much.

Every loop step and macro call counts and looks at the time; what makes text or lists from others is
measured before it runs. So a rendering ends in bounded time and memory, whatever its template says.
Knows nothing of how templates are compiled.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from jinja2.runtime import Context

from blockdiff.errors import RequestError

MAX_SECONDS = 2.0
MAX_STEPS = 1_000_000
MAX_RANGE = 100_000
# Characters of one text; an element of a list counts as many as it takes bytes.
MAX_SIZE = 16 << 20
MAX_MADE = 256 << 20
ELEMENT = 16
# Most bits of a number, most digits of a width, most spaces of an indent
MAX_BITS = 4096
MAX_WIDTH = 100_000

BUDGET = "budget!"
"""Under which a rendering's context has its ``Budget``: no template can spell it."""

# Harmless methods of the values that templates hold; all others are refused.
METHODS = frozenset(
    "capitalize casefold copy count endswith find format get index isalnum isalpha isdecimal "
    "isdigit islower isnumeric isspace istitle isupper items join keys lower lstrip partition "
    "removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines "
    "startswith strip swapcase title upper values".split()
)


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


def limited(size: Callable[..., int], function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of a context and others, run only if its ``size`` of the others is allowed."""

    @functools.wraps(function)
    def run(context: Context, *values: Any, **named: Any) -> Any:
        budget_of(context).make(size(*values, **named))
        return function(context, *values, **named)

    run.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return run
