"""What an oracle test draws: a model, how it is stored, and the tokens it is asked about."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from blockdiff.checkpoint import load_model

from .checkpoints import Layout, layouts, random_model, write_checkpoint
from .sides import Ours, Reference

VOCABULARY = 23


def bounded(examples: int) -> settings:
    """The same so many examples in every run, and no stopwatch."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@dataclass(frozen=True)
class Case:
    """A model, how it is stored, and what it is asked."""

    config: dict[str, Any]
    layout: Layout
    seed: int
    prompt: list[int]  # 1 token to 3 blocks and 1
    block: list[int]


def draw_case(draw: st.DrawFn, config: dict[str, Any]) -> Case:
    """A case around the keys of a config."""
    block = draw(st.integers(1, 9))
    ids = st.integers(0, VOCABULARY - 1)
    length = draw(st.integers(1, 3 * block + 1))
    return Case(
        config,
        draw(layouts),
        draw(st.integers(0, 2**16)),
        draw(st.lists(ids, min_size=length, max_size=length)),
        draw(st.lists(ids, min_size=block, max_size=block)),
    )


@contextmanager
def both_sides(
    case: Case, make: Callable[[], Any], is_hybrid: bool, **keys: Any
) -> Iterator[tuple[Ours, Reference]]:
    """The model that ``make`` gives, and ours loaded from a checkpoint of it."""
    model = random_model(make, case.seed)
    with tempfile.TemporaryDirectory() as folder:
        ours = load_model(write_checkpoint(Path(folder), model, case.layout, **keys))
        tokens = len(case.prompt) + 2 * len(case.block)
        yield Ours(ours, tokens), Reference(model, is_hybrid)
