"""What a public tensor is: its name, type, range and who honours it. Knows no particular field."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

INT32_MAX = 2**31 - 1
# Most elements of a list.
MAX_LIST_ITEMS = 10_000
ALL = "all"


class Kind(str, Enum):
    """Element type, by the name Triton uses in config.pbtxt."""

    STRING = "TYPE_STRING"
    INT32 = "TYPE_INT32"
    UINT64 = "TYPE_UINT64"
    FP32 = "TYPE_FP32"
    BOOL = "TYPE_BOOL"


@dataclass(frozen=True)
class Field:
    """One public input. ``default`` None means unset: the model or the server decides."""

    name: str
    kind: Kind
    meaning: str
    low: float | None = None
    high: float | None = None
    is_low_excluded: bool = False
    is_list: bool = False
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    default: Any = None
    honoured_by: str = ALL
    """Algorithms or families that honour it; all others refuse it."""
    text_range: str = ""
    """What its text may be, where that is more than UTF-8."""
    is_json: bool = False
    """Inside ``sampling_parameters`` it may be given as a JSON value instead of as text of one."""
    is_refused: bool = False
    neutral: tuple[Any, ...] = ()
    """For a refused field: values that ask for nothing and are therefore accepted."""

    @property
    def dims(self) -> str:
        return "-1" if self.is_list else "1"

    def allowed(self, high: float | None = None) -> str:
        """The allowed values as a phrase; ``high`` narrows the upper end."""
        top = self.high if high is None else high
        if self.choices:
            return " or ".join(self.choices)
        if self.kind is Kind.BOOL:
            return "true or false"
        if self.low is not None and top is not None:
            if self.is_low_excluded:
                return f"more than {self.low:.10g} and up to {top:.10g}"
            return f"{_number(self.low)} to {_number(top)}"
        if self.kind is Kind.STRING:
            return self.text_range or "UTF-8 text"
        return "a number"


@dataclass(frozen=True)
class Output:
    """One public output tensor of the ensemble and of ``unary``."""

    name: str
    kind: Kind
    meaning: str
    is_list: bool = False

    @property
    def dims(self) -> str:
        return "-1" if self.is_list else "1"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:g}"
