"""Typed access to the keys of a configuration mapping, with errors that name key, value and range.

Knows nothing of families or of what a key is used for.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from blockdiff.config.known_keys import HARMLESS, MATHS
from blockdiff.errors import ConfigError

# values by which a config says that it does without
_NEUTRAL: tuple[Any, ...] = (None, False, 0, 1, [], {}, "")
_LONGEST_SHOWN = 120  # characters of a value in an error text


class Keys:
    """A mapping whose values are checked on reading. ``prefix`` goes before the key in errors."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self.values = values
        self.prefix = prefix
        self.read: set[str] = set()
        self.unread_below: list[str] = []  # of objects inside this one, with their prefix

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return self.values.get(key, default)

    def unread(self) -> tuple[str, ...]:
        """Keys that nothing has asked for and that are not known to change nothing."""
        own = set(self.values) - self.read - HARMLESS
        return (*sorted(own), *self.unread_below)

    def error(self, key: str, allowed: str) -> ConfigError:
        """An error to raise: the key with its value, and what would be allowed."""
        place = self.prefix if ": " in self.prefix else f"config.json: {self.prefix}"
        if key not in self.values:
            return ConfigError(f"{place}{key} is missing; it must be {allowed}")
        shown = repr(self.values[key])
        if len(shown) > _LONGEST_SHOWN:
            shown = f"{shown[:_LONGEST_SHOWN]}..."
        return ConfigError(f"{place}{key} is {shown}; it must be {allowed}")

    def integer(
        self, key: str, default: int | None = None, low: int = 1, high: int = 2**31 - 1
    ) -> int:
        """An integer in [low, high]; ``default`` stands in for an absent or null key."""
        value = self.get(key)
        value = default if value is None else value
        if type(value) is not int or not low <= value <= high:
            raise self.error(key, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float, low: float, high: float) -> float:
        """A finite number in (low, high] (low itself is not allowed)."""
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"a number above {low} up to {high}")
        # compared before it is converted: JSON has integers that no float can hold
        if not low < value <= high:
            raise self.error(key, f"a number above {low} up to {high}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def choice(self, key: str, allowed: Sequence[str], default: str) -> str:
        value = self.get(key)
        value = default if value is None else value
        if value not in allowed:
            raise self.error(key, f"one of {list(allowed)}")
        return str(value)

    def multiple(self, key: str, of: str) -> int:
        """A positive integer that is a multiple of another key's."""
        value, unit = self.integer(key), self.integer(of)
        if value % unit:
            raise self.error(key, f"a multiple of {of} ({unit})")
        return value


def check_maths_keys(keys: Keys, only: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse values of known keys that would need a computation the family does not have."""
    for key, allowed in only.items():
        value = keys.get(key)
        if not any(type(value) is type(a) and value == a for a in allowed):
            raise keys.error(key, f"absent or one of {[a for a in allowed if a is not None]}")


def check_unread_keys(keys: Keys, family: str) -> None:
    """Refuse keys with a meaning for the maths that the family's parser did not ask for."""
    for key in keys.unread():
        value = keys.values.get(key)
        if key in MATHS and (value is True or value not in _NEUTRAL):
            raise keys.error(key, f"absent: {family} does not compute it")
