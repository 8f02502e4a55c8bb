"""perf_analyzer runs on this machine and measures a decoupled model of a real server."""

import json
import subprocess

import pytest

from blockdiff.embedded.perf_analyzer import missing_libraries, perf_analyzer_command

pytestmark = pytest.mark.server


def test_measures_a_decoupled_stream(make_server, tmp_path):
    command, environment = perf_analyzer_command()
    data = tmp_path / "input.json"
    data.write_text(json.dumps({"data": [{"COUNT": [3], "DELAY": [0.01]}]}))
    server = make_server()
    server.start(timeout=60)
    result = subprocess.run(
        [*command, "-m", "counter", "-u", server.grpc_url, "-i", "grpc", "--streaming", "--async"]
        + ["--input-data", str(data), "--concurrency-range", "2", "--measurement-mode"]
        + ["count_windows", "--measurement-request-count", "10", "--max-trials", "3", "-s", "90"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Throughput:" in result.stdout, result.stdout + result.stderr
    assert "Response Throughput" in result.stdout


def test_libraries_are_linked_once():
    first, environment = perf_analyzer_command()
    assert perf_analyzer_command()[0] == first
    from pathlib import Path

    assert missing_libraries(Path(first[0]), environment) == []
