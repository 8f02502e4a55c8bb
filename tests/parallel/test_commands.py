"""``--tensor-parallel`` of the commands: the same output, one line of error, no process left.

Run: pytest tests/parallel/test_commands.py
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from blockdiff.cli.main import run
from tests.golden.cases import FIXTURES, as_line, entries

from .processes import children_of, is_running, wait_until

CASE = "clover_moe/layers4_block8"
MODEL = str(FIXTURES / CASE)
LONG = ["--input-ids", "1,2,3", "--max-tokens", "240", "--ignore-eos", "--threshold", "1.0"]


def test_generate_prints_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "--model", MODEL, "--input-ids", "5,6,7", "--max-tokens", "20"]
    printed = []
    for more in ([], ["--tensor-parallel", "2"]):
        assert run([*command, "--format", "json", *more]) == 0
        printed.append(json.loads(capsys.readouterr().out))
        printed[-1].pop("seconds")
    assert printed[0] == printed[1]


def test_logits_writes_the_same_file(tmp_path: Path) -> None:
    lines = tmp_path / "requests.jsonl"
    chosen = {entry["kind"]: entry for entry in entries(CASE)}
    lines.write_text("\n".join(as_line(entry) for entry in chosen.values()))
    command = ["logits", "--model", MODEL, "--requests", str(lines)]
    assert run([*command, "--out", str(tmp_path / "one")]) == 0
    assert run([*command, "--out", str(tmp_path / "two"), "--tensor-parallel", "2"]) == 0
    one, two = load_file(tmp_path / "one"), load_file(tmp_path / "two")
    assert set(one) == set(two)
    for name, tensor in one.items():
        assert_close(two[name], tensor, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("command", ["generate", "logits", "eval"])
def test_indivisible_model_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {
        "generate": ["--input-ids", "1"],
        "logits": ["--phase", "prefill", "--input-ids", "1", "--out", str(tmp_path / "out")],
        "eval": ["--limit", "1"],
    }
    model = "demo/checkpoint" if command == "eval" else MODEL
    assert run([command, "--model", model, *flags[command], "--tensor-parallel", "3"]) == 2
    got = capsys.readouterr()
    assert got.out == ""
    assert got.err == (
        "blockdiff: config.json: num_attention_heads is 4; for tensor_parallel 3 it must be "
        "a multiple of 3\n"
    )


def test_serve_refuses_before_it_starts_anything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--model", "demo/checkpoint", "--tensor-parallel", "3"]) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("blockdiff: config.json: num_attention_heads is 4; for tensor_parallel")


@pytest.fixture
def running() -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A command in the middle of a long generation, and its follower."""
    flags = ["--model", MODEL, *LONG, "--tensor-parallel", "2"]
    command = [sys.executable, "-m", "blockdiff.cli.main", "generate", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        wait_until(lambda: bool(children_of(process.pid)), "a follower starts", 60)
        (follower,) = children_of(process.pid)
        # both listen to each other on sockets when the model is loaded
        wait_until(lambda: has_met(follower), "the ranks have met", 60)
        yield process, follower
        wait_until(lambda: not is_running(follower), "the follower ends")
    finally:
        process.kill()
        process.communicate()


def has_met(pid: int) -> bool:
    """Whether a follower has opened more sockets than the connection it was started with."""
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(entry))
        except OSError:
            continue
    return sum(link.startswith("socket:") for link in links) > 2


@pytest.mark.chaos
def test_killed_follower_ends_the_command(
    running: tuple["subprocess.Popen[str]", int],
) -> None:
    process, follower = running
    os.kill(follower, signal.SIGKILL)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert err == (f"blockdiff: tensor parallel rank 1 (pid {follower}) died: killed by signal 9\n")


@pytest.mark.chaos
@pytest.mark.parametrize("is_stopped", [False, True])
def test_followers_end_with_a_killed_rank_0(
    running: tuple["subprocess.Popen[str]", int], is_stopped: bool
) -> None:
    """Even one that cannot notice by itself."""
    process, follower = running
    if is_stopped:
        os.kill(follower, signal.SIGSTOP)
    process.kill()
    process.wait()
    wait_until(lambda: not is_running(follower), "the follower ends")
