"""perf_analyzer, the tool operators know, runs against the ensemble at several concurrencies."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from blockdiff.embedded import TritonServer
from blockdiff.embedded.perf_analyzer import perf_analyzer_command
from perf.perf_analyzer import measure, write_inputs

from .calls import script
from .conftest import CHECKPOINT

pytestmark = pytest.mark.server


@pytest.mark.parametrize("concurrency", [1, 4, 8])
def test_perf_analyzer(wide: TritonServer, tmp_path: Path, concurrency: int) -> None:
    prompts = [script("hello world " * n, block=4, delay=0.02) for n in (1, 3, 5)]
    data = [{"text_input": [prompt], "max_tokens": [64], "stream": [True]} for prompt in prompts]
    (tmp_path / "inputs.json").write_text(json.dumps({"data": data}))
    command, environment = perf_analyzer_command()
    done = subprocess.run(
        [
            *command,
            *("-m", "ensemble", "-i", "grpc", "-u", wide.grpc_url, "--streaming", "--async"),
            *("--input-data", str(tmp_path / "inputs.json")),
            *("--concurrency-range", str(concurrency)),
            *("--measurement-mode", "count_windows", "--measurement-request-count", "20"),
            *("--stability-percentage", "999", "--max-trials", "10"),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    throughput = re.search(r"Response Throughput: ([0-9.]+) infer/sec", done.stdout)
    assert throughput is not None and float(throughput[1]) > 1, done.stdout


def test_perf_analyzer_on_the_trained_model(demo: TritonServer, tmp_path: Path) -> None:
    """What `make perf` does: real prompts, real engine."""
    inputs = tmp_path / "inputs.json"
    write_inputs(CHECKPOINT / "eval_prompts.jsonl", inputs, 40)
    for concurrency in (1, 4, 8):
        row = measure(demo.grpc_url, inputs, concurrency, requests=20)
        assert row.requests_per_second > 1
        # Some answers have two blocks, and every block is one response.
        assert row.blocks_per_second > row.requests_per_second
        assert 0 < row.p50 <= row.p95 <= row.p99
