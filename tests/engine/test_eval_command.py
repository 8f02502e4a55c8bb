"""``blockdiff eval``: checkers, scores that add up, table, JSON, picture, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from blockdiff.cli.main import run as run_command
from blockdiff.evaluation.checkers import CHECKERS

from .checkpoint import make_broken, make_checkpoint

CALL = '{"name": "f", "arguments": {"a": 1, "b": "x"}}'


@pytest.mark.parametrize(
    ("check", "output", "expected", "is_right"),
    [
        ("exact", " 1 2 3\n", "1 2 3", True),
        ("exact", "1 2 3 4", "1 2 3", False),
        ("exact", "<think>\n</think>1", "1", False),
        ("tool_call", f"<tool_call>\n{CALL}\n</tool_call>", CALL, True),
        (
            "tool_call",
            '<tool_call>{"arguments":{"b":"x","a":1},"name":"f"}</tool_call>',
            CALL,
            True,
        ),
        (
            "tool_call",
            f"</think>\n<tool_call>{CALL}</tool_call>",
            f"<tool_call>{CALL}</tool_call>",
            True,
        ),
        ("tool_call", f"sure <tool_call>{CALL}</tool_call>", CALL, False),
        ("tool_call", f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>", CALL, False),
        ("tool_call", '{"name": "g", "arguments": {"a": 1, "b": "x"}}', CALL, False),
        ("tool_call", '{"name": "f", "arguments": {"a": 1}}', CALL, False),
        ("tool_call", "no json", CALL, False),
        ("tool_call", "[1]", "[1]", False),
        ("final_answer", "8+7=15\n</think>\n\n825", "other carries</think>825", True),
        ("final_answer", "8+7=15\n</think>\n\n825", "825", True),
        ("final_answer", "825", "</think>825", False),
        ("final_answer", "x</think>\n\n824", "825", False),
    ],
)
def test_checkers(check: str, output: str, expected: str, is_right: bool) -> None:
    assert CHECKERS[check](output, expected) is is_right


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four questions in two tasks; one of them has what the model says as its answer."""
    folder = make_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    lines = [
        {"task": task, "messages": [{"role": "user", "content": text}], "expected": "?"}
        for task, text in (("sort", "3 1"), ("sort", "2 9"), ("upper", "x"), ("upper", "stone"))
    ]
    (folder / "eval_prompts.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return folder


def evaluate(
    capsys: pytest.CaptureFixture[str], model: Path, *flags: object
) -> tuple[int, str, str]:
    code = run_command(["eval", "--model", str(model), *(str(flag) for flag in flags)])
    got = capsys.readouterr()
    return code, got.out, got.err


def test_scores_add_up_and_files_are_written(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path
) -> None:
    flags = ["--max-tokens", 16, "--thresholds", "0.5,0.9", "--steps", "1,8", "--format", "json"]
    files = ["--png", tmp_path / "q.png", "--out", tmp_path / "q.json"]
    code, out, err = evaluate(capsys, checkpoint, *flags, *files)
    assert code == 0, err
    result = json.loads(out)
    assert result == json.loads((tmp_path / "q.json").read_text())
    assert (tmp_path / "q.png").read_bytes().startswith(b"\x89PNG")
    scores: list[dict[str, Any]] = result["scores"]
    settings = list(dict.fromkeys(score["setting"] for score in scores))
    wanted = ["threshold 0.5", "threshold 0.9", "steps 1", "steps 8", "autoregressive"]
    assert settings == wanted and result["prompts"] == 4
    for setting in settings:
        *tasks, total = [score for score in scores if score["setting"] == setting]
        assert [score["task"] for score in tasks] == ["sort", "upper"] and total["task"] == "all"
        for field in ("prompts", "correct", "output_tokens", "forwards"):
            assert total[field] == sum(score[field] for score in tasks)
    by_name = {score["setting"]: score for score in scores if score["task"] == "all"}
    assert by_name["autoregressive"]["tokens_per_forward"] == 1
    assert by_name["steps 1"]["tokens_per_forward"] > by_name["steps 8"]["tokens_per_forward"]


def test_right_answers_are_counted(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path
) -> None:
    asked = {"task": "t", "messages": [{"role": "user", "content": "3 1"}]}
    flags = ["generate", "--model", str(checkpoint), "--format", "json", "--max-tokens", "8"]
    run_command([*flags, "--denoise-steps", "8", "--messages", json.dumps(asked["messages"])])
    said = json.loads(capsys.readouterr().out)["text"]
    prompts = tmp_path / "p.jsonl"
    lines = [{**asked, "expected": said}, {**asked, "expected": said + "!"}]
    prompts.write_text("\n".join(json.dumps(line) for line in lines))
    code, out, err = evaluate(
        capsys, checkpoint, "--prompts", prompts, "--thresholds", "", "--steps", "8",
        "--no-autoregressive", "--max-tokens", 8, "--format", "json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["scores"][-1]["correct"] == 1


def test_the_table_shows_tasks_and_says_what_is_counted(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = evaluate(
        capsys, checkpoint, "--limit", 2, "--max-tokens", 8, "--thresholds", "0.9", "--steps", ""
    )
    assert code == 0, err
    for part in ("exact match", "TPF", "sort 1", "upper 1", "threshold 0.9", "autoregressive"):
        assert part in out
    assert "prefill" in out


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--thresholds", "0.5,x"], ["thresholds", "x"]),
        (["--thresholds", "1.5"], ["threshold 1.5", "0.0 to 1.0"]),
        (["--steps", "9"], ["steps 9", "denoise_steps", "1 to 8"]),
        (["--thresholds", "", "--steps", "", "--no-autoregressive"], ["nothing to measure"]),
        (["--prompts", "nowhere.jsonl"], ["nowhere.jsonl"]),
        (["--max-tokens", "9999"], ["max_tokens", "9999"]),
        (["--png", "nowhere/q.png"], ["png", "nowhere/q.png", "folder that exists"]),
        (["--out", "/"], ["out: / must be a file"]),
    ],
)
def test_bad_flags_are_one_clear_line(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, flags: list[str], parts: list[str]
) -> None:
    if "--steps" not in flags:
        flags = [*flags, "--steps", ""]
    code, out, err = evaluate(capsys, checkpoint, *flags)
    assert code == 2 and out == "" and err.count("\n") == 1
    assert all(part in err for part in parts), err


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{", "JSON"),
        ('{"task": "a", "messages": []}', "expected"),
        ('{"task": "a", "messages": [], "expected": ""}', "messages"),
        ('{"task": "all", "messages": [{"role": "user", "content": "a"}], "expected": ""}', "task"),
        (
            '{"task": "a", "messages": [{"role": "user", "content": "a"}], "expected": "", '
            '"check": "magic"}',
            "magic",
        ),
    ],
)
def test_a_bad_prompt_line_is_named(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path, line: str, part: str
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("\n" + line)
    code, _, err = evaluate(capsys, checkpoint, "--prompts", path, "--steps", "")
    assert code == 2 and f"{path} line 2: " in err and part in err


def test_a_model_that_fails_has_no_score(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path
) -> None:
    folder = make_broken(checkpoint, tmp_path / "broken")
    code, out, err = evaluate(capsys, folder, "--steps", "8", "--thresholds", "")
    assert (code, out) == (1, "")
    assert err == "blockdiff: warm-up failed: the model's output is not finite\n"
