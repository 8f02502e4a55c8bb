"""The folder of a run of the server: gone after it, and after the next run if it was killed."""

import signal
import subprocess
import sys

import pytest

from blockdiff.embedded.work_folder import PREFIX, work_folder

HOLD = """
from blockdiff.embedded.work_folder import work_folder
with work_folder() as folder:
    print(folder, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_it_is_removed_at_the_end(temporary):
    with work_folder() as folder:
        assert folder.parent == temporary and folder.name.startswith(PREFIX)
    assert not list(temporary.iterdir())


def test_only_what_a_killed_run_left_is_removed(temporary):
    command = [sys.executable, "-c", HOLD]
    runs = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    killed, kept = (run.stdout.readline().strip() for run in runs)
    foreign = temporary / f"{PREFIX}unlocked"
    foreign.mkdir()
    runs[0].send_signal(signal.SIGKILL)
    runs[0].wait()
    with work_folder() as folder:
        assert {str(path) for path in temporary.iterdir()} == {kept, str(foreign), str(folder)}
        assert killed not in (kept, str(folder))
    runs[1].communicate("\n")
    assert list(temporary.iterdir()) == [foreign]
