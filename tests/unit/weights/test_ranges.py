"""Long lists of names become few patterns that say exactly the same."""

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from blockdiff.weights.ranges import compress, describe


def expand(pattern: str) -> list[str]:
    """The names a pattern stands for."""
    pieces = re.split(r"\{([^}]*)\}", pattern)
    choices: list[list[str]] = []
    for index, piece in enumerate(pieces):
        if index % 2 == 0:
            choices.append([piece])
            continue
        numbers: list[str] = []
        for run in piece.split(","):
            low, _, high = run.partition("-")
            numbers += [str(n) for n in range(int(low), int(high or low) + 1)]
        choices.append(numbers)
    return ["".join(parts) for parts in itertools.product(*choices)]


def test_a_whole_model_is_one_line_a_tensor() -> None:
    names = [
        f"layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
        for layer in range(40)
        for expert in range(256)
        for part in ("gate", "up")
    ]
    assert describe([*names, "norm.weight"], "is missing") == [
        "layers.{0-39}.mlp.experts.{0-255}.gate_proj.weight is missing (10240 tensors)",
        "layers.{0-39}.mlp.experts.{0-255}.up_proj.weight is missing (10240 tensors)",
        "norm.weight is missing",
    ]


def test_gaps_and_digits_that_are_no_numbers() -> None:
    names = [f"layers.{n}.conv1d.weight" for n in (0, 1, 2, 5, 7, 8)]
    assert describe(names, "is odd") == ["layers.{0-2,5,7-8}.conv1d.weight is odd (6 tensors)"]
    assert describe(["layers.3.A_log"], "is odd") == ["layers.3.A_log is odd"]
    assert describe(["a.007.b"], "is odd") == ["a.007.b is odd"]


def test_what_is_no_full_box_is_split() -> None:
    names = ["l.0.e.0.w", "l.0.e.1.w", "l.1.e.0.w", "l.1.e.1.w", "l.2.e.1.w"]
    assert [p.text for p in compress(names)] == ["l.{0-1}.e.{0-1}.w", "l.2.e.1.w"]


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from("ab"))))
def test_nothing_is_lost_and_nothing_added(keys: set[tuple[int, int, str]]) -> None:
    names = {f"layers.{layer}.x.{expert}.{part}" for layer, expert, part in keys}
    patterns = compress(sorted(names))
    expanded = [name for pattern in patterns for name in expand(pattern.text)]
    assert sorted(expanded) == sorted(names)
    assert sum(pattern.count for pattern in patterns) == len(names)
