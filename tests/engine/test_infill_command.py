"""Pinned places and suffixes on the command line of ``blockdiff generate``."""

import json
from pathlib import Path
from typing import Any

import pytest

from .checkpoint import make_checkpoint
from .test_generate_command import Command, write_lines

DEMO = Path(__file__).parents[2] / "demo" / "checkpoint"
ASK = ["--input-ids", "1,2,3", "--denoise-steps", 4]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def test_every_form_of_pins_means_the_same(command: Command, tmp_path: Path) -> None:
    want = {3: 17, 9: 18, 10: 19}
    flags = [*ASK, "--max-tokens", 16, "--ignore-eos"]
    (by_flag,) = command.results(*flags, "--pinned", json.dumps(want))
    assert [by_flag["output_ids"][place] for place in want] == [17, 18, 19]
    lines = [{"pinned": want}, {"pinned": list(want.items())}, {"pinned": {"3": 17}}]
    lines[2] |= {"suffix_ids": [18, 19], "gap": 9}
    given = {"input_ids": [1, 2, 3], "denoise_steps": 4, "max_tokens": 16, "ignore_eos": True}
    path = write_lines(tmp_path / "lines.jsonl", *[{**given, **line} for line in lines])
    for got in command.results("--requests", path):
        assert got["output_ids"] == by_flag["output_ids"]


def test_a_suffix_ends_the_answer(command: Command, tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model")
    (by_text,) = command.results(*ASK, "--suffix", "ab", "--gap", 5, model=model)
    assert by_text["text"].endswith("ab") and by_text["num_output_tokens"] == 7
    (by_ids,) = command.results(*ASK, "--suffix-ids", "65,66", "--gap", 5, model=model)
    assert by_ids["output_ids"] == by_text["output_ids"]
    (longer,) = command.results(
        *ASK, "--suffix", "ab", "--gap", 5, "--max-tokens", 9, "--ignore-eos", model=model
    )
    assert longer["output_ids"][5:7] == [65, 66] and longer["num_output_tokens"] == 9


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--pinned", "5"], ["pinned: ", "[[5, 17]]"]),
        (["--pinned", '{"a": 1}'], ["pinned: ", "[[5, 17]]"]),
        (["--pinned", "[[1, true]]"], ["pinned: ", "[[5, 17]]"]),
        (["--pinned", "[[1, 2], [1, 3]]"], ["pinned: ", "twice"]),
        (["--pinned", "[[8, 2]]", "--max-tokens", 8], ["pinned: place: 8", "0 to 7"]),
        (["--suffix-ids", "1"], ["gap"]),
        (["--gap", 3], ["suffix"]),
        (["--gap", 3, "--suffix-ids", ""], ["suffix", "empty"]),
        (["--gap", 3, "--suffix-ids", "1", "--suffix", "a"], ["suffix, suffix_ids"]),
        (["--gap", 3, "--suffix", "a"], ["tokenizer"]),
        (["--gap", 3, "--suffix-ids", "1", "--max-tokens", 3], ["place: 3", "0 to 2"]),
    ],
)
def test_refusals(command: Command, flags: list[Any], parts: list[str]) -> None:
    refusal = command.refusal("--input-ids", "1,2", *flags)
    assert all(part in refusal for part in parts), refusal


def test_a_suffix_steers_what_the_demo_model_fills_in(command: Command) -> None:
    ask = ["--messages", '[{"role": "user", "content": "sort"}]', "--threshold", 0.99]
    fills = set()
    for suffix in (" 52 88", "stone", "aaaa"):
        (got,) = command.results(*ask, "--suffix", suffix, "--gap", 4, model=DEMO)
        assert got["text"].endswith(suffix)
        fills.add(tuple(got["output_ids"][:4]))
    (free,) = command.results(*ask, "--max-tokens", 4, "--min-tokens", 4, model=DEMO)
    assert len(fills) == 3 and tuple(free["output_ids"]) not in fills
