"""The pieces of text work that are timed do what a server does."""

import pytest

from blockdiff.text import Tokenizer
from perf.text_work import CHECKPOINT, PARTS, blocks, percentiles, timed


@pytest.mark.parametrize("name", PARTS)
def test_every_part_runs(name: str) -> None:
    found = timed(PARTS[name](Tokenizer.load(CHECKPOINT), CHECKPOINT), 20)
    assert 0 < found["p50_ms"] <= found["p99_ms"]


def test_the_answer_has_thinking_text_and_a_call() -> None:
    work = blocks(Tokenizer.load(CHECKPOINT), CHECKPOINT)
    deltas = [next(work)() for _ in range(60)]
    assert sum(delta.num_reasoning_tokens for delta in deltas) > 64
    assert any(delta.calls for delta in deltas) and any("seven" in delta.text for delta in deltas)


def test_percentiles_are_in_milliseconds() -> None:
    assert percentiles([0.001] * 99 + [0.002])["p50_ms"] == pytest.approx(1.0)
