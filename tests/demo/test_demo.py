"""`make demo` without the make: a real server, three right answers, nothing left running."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def descendants_of(session: int) -> list[str]:
    """Command lines of the processes in a session, whoever adopted them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(stat.with_name("cmdline").read_text().replace("\0", " "))
        except (OSError, IndexError):
            continue
    return found


@pytest.mark.server
def test_the_demo_answers_right_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "200"}
    process = subprocess.Popen(
        [sys.executable, "-m", "demo.demo"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=200)[0]
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert "3 of 3 answers are right" in said
    for prompt in ("sort 52 7 31 88", "what is the weather in Paris in celsius", "三加五等于几"):
        assert prompt in said
    blocks = re.findall(r"block (\d+) +\d+ ms +(\d+) steps? +(\d+) tokens", said)
    assert len(blocks) >= 3 and all(int(steps) > 0 for _, steps, _ in blocks)
    assert re.search(r"\d+ tokens/s; \d+\.\d\d tokens per forward \(TPF\)", said)
    assert "stopped" in said.splitlines()[-1]
    assert descendants_of(process.pid) == []
    assert not list(tmp_path.iterdir())
