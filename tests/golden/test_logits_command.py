"""``blockdiff logits`` from command line to file. Run: pytest tests/golden"""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from blockdiff.cli.main import run

from . import cases
from .by_command import check_case

CASE = "clover_moe/layers4_block8"
MODEL = str(cases.FIXTURES / CASE)


def entry(name: str) -> dict[str, Any]:
    return next(e for e in cases.entries(CASE) if e["name"] == name)


def joined(ids: list[int]) -> str:
    return ",".join(map(str, ids))


CANVAS_CASE = "diffusion_gemma/canvas8"


@pytest.mark.parametrize("case", cases.CASES)
def test_both_commands_reproduce_every_entry(tmp_path: Path, case: str) -> None:
    count, problems = check_case(case, tmp_path)
    assert count == len(cases.entries(case)) and not problems


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"inputs": {"self_conditioning_logits": "nowhere"}}, "'nowhere' cannot be read"),
        ({"inputs": {"self_conditioning_logits": "prefill_logits/len1"}}, "has shape [1, 128]"),
        ({"inputs": {"other": "prefill_logits/len1"}}, "inputs is"),
        ({"inputs": {}}, "inputs is {}"),
        ({"params": {"block_length": 4}}, "block_length is 4; this model allows [8]"),
        ({"params": {"self_conditioning": False}}, "with self_conditioning"),
        ({"block_ids": [1] * 9, "params": {}}, "block_ids has 9 ids; a canvas has 8"),
        ({"kind": "commit"}, "there is no use for it here"),
    ],
)
def test_signals_that_cannot_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], text: str
) -> None:
    name = "self_conditioned_inside_window"
    each = next(e for e in cases.entries(CANVAS_CASE) if e["name"] == name)
    lines = tmp_path / "requests.jsonl"
    lines.write_text(json.dumps({**each, **changes}))
    words = ["logits", "--model", str(cases.FIXTURES / CANVAS_CASE), "--requests", str(lines)]
    assert run([*words, "--out", str(tmp_path / "out.safetensors")]) == 2
    # a note on the vision tower's tensors comes before it
    *_, error = capsys.readouterr().err.splitlines()
    assert text in error


@pytest.mark.parametrize(
    ("phase", "name", "input_field", "role"),
    [
        ("prefill", "len17", "input_ids", "logits"),
        ("preview", "odd_prefix", "prefix_ids", "logits"),
        ("commit", "after_odd_prefix", "prefix_ids", "committed_block_logits"),
    ],
)
def test_single_phase(tmp_path: Path, phase: str, name: str, input_field: str, role: str) -> None:
    out, each = tmp_path / "out.safetensors", entry(name)
    words = ["logits", "--model", MODEL, "--phase", phase, "--out", str(out)]
    words += ["--input-ids", joined(each[input_field])]
    if phase != "prefill":
        words += ["--block-ids", joined(each["block_ids"]), "--block-length", "8"]
    assert run(words) == 0
    got = load_file(out)
    cases.assert_within(each, role, got["logits"], cases.expected_roles(CASE, each)[role])
    assert got["recurrent_state/0"].shape == (4, 16, 16)
    assert got["conv_state/2"].shape == (128, 4)


def test_preview_without_block_ids_is_all_masks(tmp_path: Path) -> None:
    out, each = tmp_path / "out.safetensors", entry("all_masks")
    words = ["logits", "--model", MODEL, "--phase", "preview", "--out", str(out)]
    assert run([*words, "--input-ids", joined(each["prefix_ids"])]) == 0
    want = cases.expected_roles(CASE, each)["logits"]
    cases.assert_within(each, "logits", load_file(out)["logits"], want)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "line 1: must be a JSON object"),
        ('{"phase": "prefill", "input_ids": [1]}', "name is None"),
        (r'{"name": "\ud800", "phase": "prefill", "input_ids": [1]}', r"name is '\ud800'"),
        ('{"name": "a", "phase": "jump", "input_ids": [1]}', "phase is 'jump'"),
        ('{"name": "a", "kind": "generate", "input_ids": [1]}', "kind is 'generate'"),
        ('{"name": "a", "phase": "prefill", "input_ids": []}', "input_ids is empty"),
        ('{"name": "a", "phase": "prefill", "input_ids": [128]}', "input_ids holds 128"),
        ('{"name": "a", "phase": "prefill", "input_ids": [true]}', "input_ids holds True"),
        ('{"name": "a", "phase": "prefill", "input_ids": 3}', "must be a list"),
        ('{"name": "a", "phase": "prefill", "input_ids": [1], "block_ids": [1]}', "no meaning"),
        ('{"name": "a", "phase": "commit", "input_ids": [1]}', "block_ids is empty or missing"),
        ('{"name": "a", "kind": [], "input_ids": [1]}', "kind is []"),
        ('{"name": "a", "phase": "prefill", "input_ids": [1], "expected": 1}', "expected must be"),
        ('{"name": ' + "[" * 100_000, "line 1: not JSON"),
        (
            '{"name": "a", "phase": "preview", "block_ids": [1, 2], "block_length": 1}',
            "block_length allows 1",
        ),
        ('{"name": "a", "phase": "prefill", "input_ids": [1], "steps": 2}', "steps is not a field"),
        (
            '{"name": "a", "phase": "preview", "block_ids": [1], "params": {"formulation": "A"}}',
            "formulation is 'A'; clover_moe previews by 'C' only",
        ),
        (
            '{"name": "a", "phase": "preview", "block_ids": [1], "params": {"block_ids": [2]}}',
            "block_ids is given twice",
        ),
        (
            '{"name": "a", "phase": "prefill", "input_ids": [1]}\n'
            '{"name": "a", "phase": "prefill", "input_ids": [1]}',
            "line 2: name is 'a'",
        ),
        ("", "holds no request"),
    ],
)
def test_bad_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, text: str
) -> None:
    lines = tmp_path / "requests.jsonl"
    lines.write_text(line)
    words = ["logits", "--model", MODEL, "--requests", str(lines)]
    assert run([*words, "--out", str(tmp_path / "out.safetensors")]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "give --phase"),
        (["--phase", "prefill", "--input-ids", "1,x"], "--input-ids is '1,x'"),
        (["--phase", "prefill", "--requests", "nothing"], "cannot be combined"),
        (["--requests", "/nowhere/requests.jsonl"], "cannot be read"),
        (["--phase", "prefill", "--input-ids", "1", "--dtype", "int3"], "dtype is 'int3'"),
        (["--phase", "prefill", "--input-ids", "1", "--out", "/nowhere/out"], "does not exist"),
        (["--phase", "prefill", "--input-ids", "1", "--model", "/nowhere"], "not found"),
        (["--phase", "prefill", "--input-ids", joined([1] * 4097)], "the context allows 4096"),
    ],
)
def test_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    out = str(tmp_path / "out.safetensors")
    assert run(["logits", "--model", MODEL, "--out", out, *words]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    """Other separators of lines may stand in a JSON text as they are."""
    lines, out = tmp_path / "requests.jsonl", tmp_path / "out.safetensors"
    fields = {"name": "a", "phase": "prefill", "input_ids": [1], "description": "one\u2028two"}
    lines.write_text(json.dumps(fields, ensure_ascii=False) + "\r\n", encoding="utf-8", newline="")
    words = ["logits", "--model", MODEL, "--requests", str(lines), "--out", str(out)]
    assert run(words) == 0
    assert "a/logits" in load_file(out)
