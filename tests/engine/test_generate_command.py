"""``blockdiff generate``: output, request files, golden entries, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from blockdiff.cli.main import run as run_command

from .checkpoint import CHECKPOINT, make_broken, make_checkpoint

KEYS = {
    "output_ids",
    "text",
    "finish_reason",
    "stop_reason",
    "num_input_tokens",
    "num_output_tokens",
    "forwards",
    "blocks",
    "seconds",
}


@pytest.fixture(scope="module")
def with_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


class Command:
    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def results(self, *flags: object, model: Path = CHECKPOINT) -> list[dict[str, Any]]:
        code = self._run(model, [*flags, "--format", "json"])
        got = self._capture.readouterr()
        assert code == 0, got.err
        return [json.loads(line) for line in got.out.splitlines()]

    def text(self, *flags: object, model: Path = CHECKPOINT) -> str:
        assert self._run(model, flags) == 0
        return self._capture.readouterr().out

    def refusal(self, *flags: object, model: Path = CHECKPOINT) -> str:
        code = self._run(model, flags)
        got = self._capture.readouterr()
        assert code == 2 and got.out == ""
        assert got.err.count("\n") == 1 and got.err.startswith("blockdiff: ")
        return got.err

    def _run(self, model: Path, flags: Any) -> int:
        return run_command(["generate", "--model", str(model), *(str(flag) for flag in flags)])


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def write_lines(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


def test_json_output_has_every_field(command: Command) -> None:
    (got,) = command.results("--input-ids", "1,2,3", "--max-tokens", 24, "--denoise-steps", 4)
    assert set(got) == KEYS
    assert got["num_input_tokens"] == 3 and got["num_output_tokens"] == len(got["output_ids"])
    assert got["forwards"] == {"prefill": 1, "preview": 12, "commit": 0, "commit_fused": 2}
    assert [block["index"] for block in got["blocks"]] == [0, 1, 2]
    assert [token for block in got["blocks"] for token in block["token_ids"]] == got["output_ids"]
    assert [block["denoise_steps"] for block in got["blocks"]] == [4, 4, 4]
    assert got["text"] is None and got["finish_reason"] == "length" and got["seconds"] > 0


def test_little_memory_without_kept_prefixes_changes_nothing(
    command: Command, tmp_path: Path
) -> None:
    flags = ("--input-ids", "1,2,3", "--max-tokens", 24)
    (plain,) = command.results(*flags)
    (small,) = command.results(*flags, "--kv-cache-size", "0.05MB", "--no-prefix-cache")
    assert small["output_ids"] == plain["output_ids"]
    assert "--kv-cache-size '5': must be" in command.refusal(*flags, "--kv-cache-size", 5)
    text = command.refusal(*flags, "--kv-cache-size", "0.0001MB")
    assert "kv_cache_bytes: 100 is too little" in text
    path = write_lines(tmp_path / "r", *({"input_ids": [1], "max_tokens": n} for n in (2, 90)))
    text = command.refusal("--requests", path, "--kv-cache-size", "0.05MB")
    assert f"{path} line 2: max_tokens: 1 prompt tokens and 90 more need 6 pages" in text


def test_text_output_is_readable(command: Command, with_tokenizer: Path) -> None:
    out = command.text("--prompt", "ab[red]", "--max-tokens", 9, model=with_tokenizer)
    assert "7 tokens in, 9 out" in out and "previews in 2 blocks" in out
    out = command.text("--input-ids", "1", "--max-tokens", 3, "--mode", "autoregressive")
    assert "2 commits" in out


def test_prompts_go_through_tokenizer_and_template(command: Command, with_tokenizer: Path) -> None:
    flags = ["--max-tokens", 12]
    by_text = command.results("--prompt", "ab", *flags, model=with_tokenizer)[0]
    by_ids = command.results("--input-ids", "65,66", *flags, model=with_tokenizer)[0]
    assert by_text["output_ids"] == by_ids["output_ids"] and by_text["text"] == by_ids["text"]
    message = json.dumps([{"role": "user", "content": "a"}])
    chat = command.results("--messages", message, *flags, model=with_tokenizer)[0]
    assert chat["num_input_tokens"] == len("user a") + 3
    thinking = command.results(
        "--messages", message, "--enable-thinking", *flags, model=with_tokenizer
    )[0]
    assert thinking["num_input_tokens"] == chat["num_input_tokens"] + 1


def test_text_leaves_out_eos_and_stop(command: Command, with_tokenizer: Path) -> None:
    ask = ["--input-ids", "1,2,3", "--max-tokens", 24, "--denoise-steps", 4]
    whole = command.results(*ask, model=with_tokenizer)[0]
    printable = [token for token in whole["output_ids"] if 1 <= token < 95]
    # A letter of the answer as stop string, and the same letter as an end id.
    stop = printable[3]
    place = whole["output_ids"].index(stop)
    by_string = command.results(*ask, "--stop", chr(stop + 32), model=with_tokenizer)[0]
    assert by_string["output_ids"] == whole["output_ids"][: place + 1]
    assert by_string["finish_reason"] == "stop" and by_string["stop_reason"] == chr(stop + 32)
    assert whole["text"].startswith(by_string["text"] + chr(stop + 32))
    assert chr(stop + 32) not in by_string["text"]


def test_guides_and_bad_words(command: Command, with_tokenizer: Path) -> None:
    given = ["--prompt", "a b", "--max-tokens", "24", "--seed", "3"]
    free = command.results(*given, "--ignore-eos", model=with_tokenizer)[0]["text"]
    word = free.strip()[0]
    kept = command.results(*given, "--ignore-eos", "--bad-word", word, model=with_tokenizer)
    assert word not in kept[0]["text"]
    guide = ["--guide-type", "regex", "--guide", "[0-9]{6}"]
    (guided,) = command.results(*given, *guide, model=with_tokenizer)
    assert guided["text"].isdigit() and len(guided["text"]) == 6
    assert "guide_type" in command.refusal(*given, "--guide", "a", model=with_tokenizer)


def test_golden_entries_are_request_lines(command: Command, tmp_path: Path) -> None:
    entry = {
        "name": "some_case",
        "kind": "generate",
        "description": "as in a fixture",
        "input_ids": [5, 6, 7],
        "params": {
            "temperature": 0.0,
            "block_length": 8,
            "steps": 8,
            "strategy": "low_confidence_dynamic",
            "threshold": 0.4,
            "max_tokens": 20,
            "stop_ids": [124, 3],
            "mask_id": 127,
            "transfer_schedule": [1] * 8,
        },
        "expected": {"token_ids": []},
        "reference_forwards": {"total": 1},
        "info": {},
    }
    editing = {
        "name": "other",
        "input_ids": [5, 6, 7],
        "params": {"steps": 8, "minimal_topk": 2, "effective_steps": 4, "max_tokens": 8},
    }
    editing["params"] |= {"eos_id": 124, "eos_early_stop": False, "transfer_schedule": [2] * 4}  # type: ignore[operator]
    path = write_lines(tmp_path / "r.jsonl", entry, "", editing)
    named, other = command.results("--requests", path)
    assert (named["name"], other["name"]) == ("some_case", "other")
    flags = ["--input-ids", "5,6,7", "--max-tokens", 20, "--threshold", 0.4, "--denoise-steps", 8]
    direct = command.results(*flags)[0]
    expected = direct["output_ids"]
    cut = next((n + 1 for n, token in enumerate(expected) if token == 3), len(expected))
    assert named["output_ids"] == expected[:cut]
    assert other["forwards"]["preview"] == 4


def test_a_file_gives_the_same_for_any_concurrency_and_arrival(
    command: Command, tmp_path: Path
) -> None:
    lines: list[dict[str, Any]] = [
        {"name": f"n{n}", "input_ids": [n + 1] * (n + 1), "max_tokens": 3 + n} for n in range(6)
    ]
    path = write_lines(tmp_path / "r.jsonl", *lines)
    late = [{**line, "arrive_after_seconds": 0.03 * (5 - n)} for n, line in enumerate(lines)]
    late_path = write_lines(tmp_path / "late.jsonl", *late)

    def outputs(*flags: object) -> list[tuple[str, list[int]]]:
        return [(got["name"], got["output_ids"]) for got in command.results(*flags)]

    alone = outputs("--requests", path, "--concurrency", 1)
    assert [name for name, _ in alone] == [f"n{n}" for n in range(6)]
    assert outputs("--requests", path, "--concurrency", 4) == alone
    assert outputs("--requests", late_path) == alone


def test_flags_are_defaults_for_lines(command: Command, tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "r.jsonl", {"input_ids": [1]}, {"input_ids": [1], "max_tokens": 2}
    )
    got = command.results("--requests", path, "--max-tokens", 5, "--ignore-eos")
    assert [one["num_output_tokens"] for one in got] == [5, 2]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("{", ["not JSON"]),
        ("[1]", ["JSON object"]),
        ({"input_ids": [1], "max_tokenz": 3}, ["max_tokenz", "unknown field"]),
        ({"input_ids": [1], "params": {"entropy_limit": 0.1}}, ["entropy_limit", "unknown"]),
        ({"input_ids": [1], "max_tokens": "3"}, ["max_tokens", '"3"']),
        ({"input_ids": [1], "max_tokens": 0}, ["max_tokens", "0"]),
        ({"input_ids": [1], "max_tokens": 1, "params": {"max_tokens": 1}}, ["max_tokens", "twice"]),
        ({"input_ids": [128]}, ["input_ids", "128"]),
        ({"max_tokens": 3}, ["exactly one", "none"]),
        ({"input_ids": [1], "prompt": "a"}, ["exactly one", "prompt and input_ids"]),
        ({"input_ids": [1], "mask_id": 3}, ["mask_id", "127"]),
        ({"input_ids": [1], "kind": "commit"}, ["kind"]),
        ({"input_ids": [1], "editing_threshold": 0.5}, ["editing_threshold", "does not support"]),
        ({"input_ids": [1], "max_post_steps": 2}, ["max_post_steps", "does not support"]),
        ({"input_ids": [1], "strategy": "sequential"}, ["algorithm", "sequential"]),
        ({"input_ids": [1], "strategy": "low_confidence_dynamic"}, ["strategy", "threshold"]),
        ({"input_ids": [1], "steps": 2, "denoise_steps": 2}, ["denoise_steps", "only one"]),
        ({"input_ids": [1], "steps": 2, "transfer_schedule": [1, 1]}, ["transfer_schedule"]),
        (
            {"input_ids": [1], "steps": 2**60, "transfer_schedule": [1, 1]},
            ["transfer_schedule", "2 entries"],
        ),
        (
            {"input_ids": [1], "block_length": 2**60, "transfer_schedule": [1]},
            ["transfer_schedule", "1 entries"],
        ),
        ({"input_ids": [1], "minimal_topk": 2}, ["minimal_topk", "steps"]),
        ({"input_ids": [1], "steps": 2, "effective_steps": 1}, ["effective_steps"]),
        ({"input_ids": [1], "arrive_after_seconds": -1}, ["arrive_after_seconds"]),
        ({"input_ids": [1], "stop": ["a"]}, ["stop_strings", "tokenizer"]),
        ({"input_ids": [1], "tools": []}, ["tools", "messages"]),
        ({"input_ids": [1], "tool_choice": "none"}, ["tool_choice", "messages"]),
    ],
    ids=str,
)
def test_one_bad_line_stops_everything_before_it_starts(
    command: Command, tmp_path: Path, line: Any, parts: list[str]
) -> None:
    path = write_lines(tmp_path / "r.jsonl", {"input_ids": [1], "max_tokens": 2}, "", line)
    text = command.refusal("--requests", path)
    assert f"{path} line 3: " in text
    assert all(part in text for part in parts), text


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ([], ["exactly one"]),
        (["--input-ids", "1,x"], ["input_ids", "1,x"]),
        (["--input-ids", ""], ["input_ids", "empty"]),
        (["--prompt", "hi"], ["tokenizer.json"]),
        (["--prompt", "hi", "--input-ids", "1"], ["exactly one"]),
        (["--input-ids", "1", "--max-tokens", "-4"], ["max_tokens", "-4"]),
        (["--input-ids", "1", "--max-tokens", "5000"], ["max_tokens", "5000", "4096"]),
        (["--input-ids", "1", "--temperature", "nan"], ["temperature", "nan"]),
        (["--input-ids", "1", "--algorithm", "magic"], ["algorithm", "magic", "low_confidence"]),
        (["--input-ids", "1", "--block-length", "0"], ["block_length"]),
        (["--input-ids", "1", "--editing-threshold", "0.9"], ["editing_threshold"]),
        (["--input-ids", "1", "--max-post-steps", "3"], ["max_post_steps"]),
        (["--input-ids", "1", "--device", "tpu"], ["device", "tpu"]),
        (["--input-ids", "1", "--dtype", "int3"], ["dtype", "int3"]),
        (["--input-ids", "1", "--mode", "magic"], ["mode"]),
        (["--messages", "[{"], ["messages", "not JSON"]),
        (["--messages", "[" * 100_000], ["messages", "ordinary depth"]),
        (["--prompt", "\udcff"], ["prompt", "UTF-8"]),
        (["--input-ids", "1", "--stop", "\udcff"], ["stop", "UTF-8"]),
        (["--requests", "nowhere.jsonl"], ["nowhere.jsonl"]),
        (["--input-ids", "1", "--concurrency", "0"], ["concurrency"]),
    ],
    ids=str,
)
def test_bad_flags_are_one_clear_line(command: Command, flags: list[str], parts: list[str]) -> None:
    text = command.refusal(*flags)
    assert all(part in text for part in parts), text


@pytest.mark.parametrize(
    "messages", ["{}", "[]", '[{"content": "a"}]', '[{"role": "wizard", "content": "a"}]']
)
def test_bad_messages_are_refused(command: Command, with_tokenizer: Path, messages: str) -> None:
    assert "messages" in command.refusal("--messages", messages, model=with_tokenizer)


def test_a_failed_request_is_one_clear_line(
    with_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_broken(with_tokenizer, tmp_path / "broken")
    flags = ["--input-ids", "1", "--max-tokens", "2", "--format", "json"]
    assert run_command(["generate", "--model", str(folder), *flags]) == 1
    got = capsys.readouterr()
    assert json.loads(got.out)["error"]
    assert got.err.startswith("blockdiff: 1 of 1 requests failed: ") and got.err.count("\n") == 1


def test_a_missing_model_is_refused(command: Command, tmp_path: Path) -> None:
    assert "nothing_here" in command.refusal("--input-ids", "1", model=tmp_path / "nothing_here")


def test_ctrl_c_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("blockdiff.cli.generate.load_tokenizer", interrupted)
    assert run_command(["generate", "--model", str(CHECKPOINT), "--input-ids", "1"]) == 1
    assert capsys.readouterr().err.strip() == "blockdiff: interrupted"


def test_priorities_are_taken_and_checked(command: Command, tmp_path: Path) -> None:
    lines = [{"input_ids": [1, 2], "max_tokens": 4, "priority": number} for number in (7, 0)]
    first, second = command.results("--requests", write_lines(tmp_path / "r.jsonl", *lines))
    assert first["output_ids"] == second["output_ids"]
    path = write_lines(tmp_path / "bad.jsonl", {"input_ids": [1], "priority": -1})
    refusal = command.refusal("--requests", path)
    assert "line 1: priority: -1 is out of range; allowed are 0 to 1000" in refusal


def test_watching_shows_every_preview(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--input-ids", "5,6,7", "--max-tokens", "6", "--denoise-steps", "2", "--ignore-eos"]
    shown = []
    for extra in ([], ["--watch"]):
        code = run_command(["generate", "--model", str(CHECKPOINT), *flags, *extra])
        shown.append((code, capsys.readouterr()))
    (_, plain), (code, watched) = shown
    assert code == 0 and watched.out.partition(" s")[0].split()[:3] == plain.out.split()[:3]
    lines = [line for line in watched.err.splitlines() if "step" in line]
    assert [line.split(":")[1].split()[-1] for line in lines] == ["0", "1"] * (len(lines) // 2)
    assert "[" in lines[0] and "[" not in lines[-1]
