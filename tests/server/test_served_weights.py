"""Which weights are served: the manifest's hash in the log, the metrics and the configuration."""

import hashlib
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from blockdiff.embedded import TritonServer
from blockdiff.weights.manifest import MANIFEST, write_manifest

from .calls import metric
from .conftest import CHECKPOINT

pytestmark = pytest.mark.server

PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_serve_records_the_hash_everywhere(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for source in CHECKPOINT.iterdir():
        (folder / source.name).write_bytes(source.read_bytes())
    write_manifest(folder, source="a test")
    log = tmp_path / "server.log"
    command = [sys.executable, "-m", "blockdiff.cli.main", "serve", "--model", str(folder)]
    process = subprocess.Popen(
        [*command, *PORTS, "--threads", "1", "--format", "json", "--log-file", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        urls: dict[str, Any] = json.loads(process.stdout.readline())
        metrics = fetch(urls["metrics"])
        config = json.loads(fetch(f"{urls['http']}/v2/models/block_diffusion/config"))
    finally:
        process.terminate()
        said = process.communicate(timeout=60)[1]
    want = digest(folder)
    shown = [line for line in metrics.splitlines() if line.startswith("blockdiff_model_info{")]
    assert len(shown) == 1 and shown[0].endswith(" 1")
    for label in (f'manifest_sha256="{want}"', 'verified="yes"', 'model_type="clover_moe"'):
        assert label in shown[0]
    assert config["parameters"]["manifest_sha256"]["string_value"] == want
    logged = [line for line in log.read_text().splitlines() if f"manifest_sha256={want}" in line]
    assert len(logged) == 1 and "block_diffusion" in logged[0] and "(verified)" in logged[0]
    assert f"weights manifest_sha256={want} (verified)" in said


def test_a_server_without_serve_verifies_by_itself(demo: TritonServer) -> None:
    labels = {"manifest_sha256": digest(CHECKPOINT), "verified": "yes", "dtype": "float32"}
    assert metric(demo, "blockdiff_model_info", **labels) == 1
