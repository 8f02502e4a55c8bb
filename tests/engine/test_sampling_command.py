"""Changed distributions and what is told of tokens, by flags and lines of ``generate``."""

import json
from pathlib import Path
from typing import Any

import pytest

from .test_generate_command import Command, write_lines

ASK = ["--input-ids", "1,2,3", "--denoise-steps", 4, "--max-tokens", 12, "--ignore-eos"]
LINE = {"input_ids": [1, 2, 3], "denoise_steps": 4, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def blocks(result: dict[str, Any], name: str) -> list[Any]:
    return [value for block in result["blocks"] for value in block[name]]


def test_flags_and_lines_mean_the_same(command: Command, tmp_path: Path) -> None:
    (plain,) = command.results(*ASK)
    assert not {"log_probs", "top_log_probs", "step_map"} & set(plain["blocks"][0])
    often = max(set(plain["output_ids"]), key=plain["output_ids"].count)
    ways: list[dict[str, Any]] = [
        {"logit_bias": {str(often): -100}},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"repetition_penalty": 50.0},
        {"temperature": 2.0, "seed": 4, "min_p": 1.0},
        {"return_log_probs": True, "top_logprobs": 2, "return_step_map": True},
    ]
    path = write_lines(tmp_path / "lines.jsonl", *[{**LINE, **way} for way in ways])
    by_line = command.results("--requests", path, "--deterministic")
    for way, line in zip(ways, by_line, strict=True):
        flags: list[Any] = []
        for name, value in way.items():
            flags.append(f"--{name.replace('_', '-')}")
            if value is not True:
                flags.append(json.dumps(value) if isinstance(value, dict) else value)
        (by_flag,) = command.results(*ASK, *flags, "--deterministic")
        assert by_flag["blocks"] == line["blocks"]
    biased, *_, told = by_line
    assert often not in biased["output_ids"]
    assert told["output_ids"] == plain["output_ids"]
    # one preview settles as many as another, by their shares
    assert set(blocks(told, "step_map")) == {0, 1, 2, 3}
    triples = zip(
        told["output_ids"], blocks(told, "log_probs"), blocks(told, "top_log_probs"), strict=True
    )
    for token, value, (best, second) in triples:
        assert best == {"id": token, "log_prob": pytest.approx(value, abs=1e-6)}
        assert second["log_prob"] <= value


def test_ramps(command: Command) -> None:
    ramp = json.dumps({"start": 3, "slope": 1000, "most": 1000})
    (ended,) = command.results(*ASK[:-1], "--stop-ramp", ramp)
    assert ended["finish_reason"] == "stop" and ended["num_output_tokens"] == 5
    assert "stop_ramp: got" in command.refusal(*ASK, "--stop-ramp", ramp)
    assert "think_end_ramp: " in command.refusal(*ASK, "--think-end-ramp", ramp)
    assert "stop_ramp: got" in command.refusal(*ASK[:-1], "--stop-ramp", '{"start": 1}')
