"""Many tensor names as few patterns: layers.{0-39}.mlp.experts.{0-255}.up_proj.weight.

Nothing is left out: a pattern stands for exactly the names it was made of. Knows names only.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_NUMBER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")
_Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Pattern:
    """``text`` with ranges in braces, and how many names it stands for."""

    text: str
    count: int


def compress(names: Iterable[str]) -> list[Pattern]:
    """Patterns for distinct ``names``, in the order in which their kinds first appear."""
    kinds: dict[str, set[_Numbers]] = {}
    for name in names:
        found = tuple(int(number) for number in _NUMBER.findall(name))
        # A number written another way, such as 007, stands for itself.
        is_plain = _NUMBER.sub(lambda number: str(int(number[0])), name) == name
        kind = _NUMBER.sub("{}", name) if is_plain else name
        kinds.setdefault(kind, set()).add(found if is_plain else ())
    patterns = []
    for kind, numbers in kinds.items():
        pieces = kind.split("{}")
        for ranges, count in _boxes(numbers):
            text = pieces[0] + "".join(r + p for r, p in zip(ranges, pieces[1:], strict=False))
            patterns.append(Pattern(text, count))
    return patterns


def describe(names: Iterable[str], what: str) -> list[str]:
    """ "PATTERN what" for every pattern, with the number of tensors where it is not one."""
    return [
        f"{pattern.text} {what}" + (f" ({pattern.count} tensors)" if pattern.count > 1 else "")
        for pattern in compress(names)
    ]


def _boxes(numbers: set[_Numbers]) -> list[tuple[tuple[str, ...], int]]:
    """Boxes that hold exactly ``numbers``: first numbers with the same rests share a box."""
    if numbers == {()}:
        return [((), 1)]
    rests: dict[int, set[_Numbers]] = {}
    for first, *rest in numbers:
        rests.setdefault(first, set()).add(tuple(rest))
    shared: dict[frozenset[_Numbers], list[int]] = {}
    for first in sorted(rests):
        shared.setdefault(frozenset(rests[first]), []).append(first)
    return [
        ((_written(firsts), *inner), len(firsts) * count)
        for rest, firsts in shared.items()
        for inner, count in _boxes(set(rest))
    ]


def _written(numbers: list[int]) -> str:
    """Ascending numbers as ranges: 3, {0-39}, {0-3,7}."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
    return text if len(numbers) == 1 else f"{{{text}}}"
