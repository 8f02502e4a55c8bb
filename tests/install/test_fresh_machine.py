"""`make demo` on a bare Debian 12 by an ordinary user with an empty home."""

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.install.fresh_machine import fresh_machine

PROJECT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.install,
    pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root"),
    pytest.mark.skipif(
        shutil.which("debootstrap") is None, reason="apt-get install debootstrap first"
    ),
]


def test_make_demo_on_a_bare_debian(tmp_path: Path) -> None:
    started = time.monotonic()
    with fresh_machine(tmp_path) as machine:
        print(f"\nbare root made in {time.monotonic() - started:.0f} s", flush=True)
        machine.clone_project(PROJECT)
        started = time.monotonic()
        result = machine.run(
            "git clone --quiet /srv/project.git blockdiff && cd blockdiff && make demo", 1800
        )
        print(result.stdout)
        print(f"clone and make demo took {time.monotonic() - started:.0f} s")
        assert result.returncode == 0, result.stdout[-3000:]
        assert "3 of 3 answers are right" in result.stdout
        assert "NOTHING LEFT" in result.stdout
