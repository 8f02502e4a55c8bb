"""The check of kernels on a GPU, run small under the interpreter: its logic, not its times."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

import perf.gpu_check as command
from blockdiff.errors import ConfigError
from blockdiff_kernels.cost import Cost
from perf.gpu.case import Maker, OpCase, Work
from perf.gpu.cases import CASES, all_cases
from perf.gpu.checking import CheckPlan, run_checks
from perf.gpu.correctness import Verdict, check
from perf.gpu.report import Measured, draw, line
from perf.gpu.sizes import FULL, TINY
from perf.gpu.step import STEP_LABEL, StepWork
from perf.gpu.timing import Deadline

SMALL = ("--device", "cpu", "--tiny", "--ops", "norm")


def _run(folder: Path, *words: str) -> int:
    return command.gpu_check(command.parse(["--out", str(folder), *SMALL, *words]))


def _rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "gpu_check.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("op", CASES)
def test_every_kernel_is_right_where_it_is_interpreted(op: str) -> None:
    cases = all_cases(TINY, TINY.rows[:1], [op])
    assert cases and all(case.cost.bytes > 0 for case in cases)
    for case in cases:
        verdict = check(case, torch.device("cpu"))
        assert verdict.is_right, verdict


def test_steps_are_checked_and_run_launched_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(command, "WEIGHTS", ("bfloat16",))
    assert _run(tmp_path) == 0
    shown = capsys.readouterr().out
    assert "WRONG" not in shown and "right step/few-layers" in shown and " us" not in shown
    rows = _rows(tmp_path)
    modes = {(row["op"], row["weights"], row["rows"], row["mode"]) for row in rows}
    expected = {("step", "bf16", str(n), mode) for n in TINY.rows for mode in ("eager", "graph")}
    assert expected < modes
    assert all(row["seconds"] == "" and float(row["floor_seconds"]) > 0 for row in rows)


def test_other_processes_check_until_time_is_up(capsys: Any) -> None:
    # a name of the CPU that does not keep the checks in this process
    plan = CheckPlan("cpu:0", True, ("norm",), False)
    verdicts = run_checks(plan, 1, Deadline(300.0))
    assert [verdict.label for verdict in verdicts] == plan.labels
    assert all(verdict.is_right for verdict in verdicts), verdicts
    late = Deadline(0.0)
    assert run_checks(plan, 1, late) == []
    assert late.left_out == [f"check {label}" for label in plan.labels]


def test_a_step_that_cannot_be_captured_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fails(*given: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(command, "WEIGHTS", ("bfloat16",))
    right = {"norm/hidden/bf16/T=16", STEP_LABEL}
    monkeypatch.setattr(command, "run_checks", lambda *given: [Verdict(n, 0, 1) for n in right])
    monkeypatch.setattr("perf.gpu.measuring.captured", fails)
    work = StepWork(lambda: [], 16)
    monkeypatch.setattr("perf.gpu.measuring.make_step", lambda *given: work)
    assert _run(tmp_path) == 0
    shown = capsys.readouterr().out
    assert "left out: step/bf16/T=16 graph: RuntimeError: operation not permitted" in shown
    modes = [(row["op"], row["mode"]) for row in _rows(tmp_path)]
    assert modes == [("norm", "eager"), ("step", "eager")]


def _wrong_cases(*ignored: Any) -> list[OpCase]:
    def make(maker: Maker) -> Work:
        x = maker.normal(4)
        return Work(lambda: [x if maker.dtype == torch.float64 else x + 1])

    def broken(maker: Maker) -> Work:
        raise RuntimeError("out of resource: shared memory")

    return [OpCase("norm", name, 4, own, Cost(1, 1)) for name, own in (("a", make), ("b", broken))]


def test_no_time_is_shown_after_a_red_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(CASES, "norm", _wrong_cases)
    assert _run(tmp_path, "--no-steps") == 1
    shown = capsys.readouterr().out
    assert "WRONG norm/a" in shown and "out of resource: shared memory" in shown
    assert "no times" in shown and not (tmp_path / "gpu_check.csv").exists()


def test_what_there_is_no_time_for_is_named(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    now = [0.0]
    monkeypatch.setattr(command, "Deadline", lambda seconds: Deadline(seconds, lambda: now[0]))

    def checks(*given: Any) -> list[Verdict]:
        now[0] = 329.0
        return [Verdict(all_cases(TINY, TINY.rows, ["norm"])[0].label, 0.0, 1.0)]

    monkeypatch.setattr(command, "run_checks", checks)
    assert _run(tmp_path, "--no-steps") == 0
    left_out = [label for label in capsys.readouterr().out.splitlines() if "left out" in label]
    assert [label.split(": ")[1] for label in left_out] == [
        case.label for case in all_cases(TINY, TINY.rows, ["norm"])
    ]
    assert _rows(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "cpu"], "only with --tiny"),
        (["--device", "tpu"], "allowed are cuda and cpu"),
        (["--device", "cpu", "--tiny", "--ops", "norm,mow"], "--ops 'mow': not known; some of "),
        ([*SMALL, "--ops", ""], "--ops '': not known"),
        ([*SMALL, "--seconds", "nan"], "--seconds nan: must be more than 0"),
        ([*SMALL, "--seconds", "-1"], "--seconds -1.0: must be more than 0"),
        ([*SMALL, "--workers", "0"], "--workers 0: must be from 1"),
        ([*SMALL, "--out", __file__], "no folder can be there"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        command.gpu_check(command.parse(["--out", str(tmp_path), *words]))


def test_nothing_checked_is_no_success(tmp_path: Path, capsys: Any) -> None:
    assert _run(tmp_path, "--no-steps", "--seconds", "1e-9") == 1
    assert "no time for a check" in capsys.readouterr().out
    assert not (tmp_path / "gpu_check.csv").exists()


def test_times_are_shown_beside_their_floor(tmp_path: Path) -> None:
    one = Measured("moe", "experts", "bf16", 32, "graph", 2e-4, 1e-4, Cost(1, 2), 1e-3)
    assert line(one).split()[-1] == "50.0%"
    about = {"device": "a GPU", "commit": "0"}
    assert draw(tmp_path / "x.png", [one], about)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_full_size_is_the_published_model() -> None:
    labels = [case.label for case in all_cases(FULL, FULL.rows, list(CASES))]
    assert len(labels) == len(set(labels))
    assert FULL.channels == 8192 and FULL.config()["num_hidden_layers"] == 40
