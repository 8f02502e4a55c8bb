"""Triton is optional: without it everything but the Triton kernels works."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = "import sys; sys.modules['triton'] = None; from blockdiff.cli.main import main; main()"


def test_generates() -> None:
    command = [sys.executable, "-c", WITHOUT, "generate", "--model", "demo/checkpoint"]
    words = ["--prompt", "sort 3 1 2", "--max-tokens", "4", "--format", "json"]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        command + words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert '"output_ids"' in done.stdout
