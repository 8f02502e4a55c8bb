"""`make perf`: perf_analyzer against the demo model on the embedded server, as a Markdown table.

Knows perf_analyzer's command line and report; serving is `blockdiff serve`'s code.
"""

import csv
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from blockdiff.cli.serve import make_server
from blockdiff.cli.serve_options import ServeOptions
from blockdiff.embedded import find_installation
from blockdiff.embedded.perf_analyzer import perf_analyzer_command
from blockdiff.errors import BlockdiffError, ConfigError

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "demo" / "checkpoint"


@dataclass(frozen=True)
class Row:
    """One concurrency; latencies in milliseconds, up to the last block of an answer."""

    concurrency: int
    requests_per_second: float
    blocks_per_second: float
    p50: float
    p95: float
    p99: float


def write_inputs(prompts: Path, target: Path, count: int) -> None:
    """Every n-th evaluation prompt as a perf_analyzer input, `count` of them."""
    lines = [json.loads(line) for line in prompts.read_text(encoding="utf-8").splitlines()]
    data = []
    for line in lines[:: max(1, len(lines) // count)][:count]:
        entry: dict[str, list[Any]] = {
            "messages": [json.dumps(line["messages"], ensure_ascii=False)],
            "tools": [json.dumps(line["tools"]) if line.get("tools") else ""],
            "enable_thinking": [bool(line.get("enable_thinking"))],
            "max_tokens": [64],
            "stream": [True],
        }
        data.append(entry)
    target.write_text(json.dumps({"data": data}, ensure_ascii=False), encoding="utf-8")


def measure(grpc_url: str, inputs: Path, concurrency: int, requests: int) -> Row:
    """Run perf_analyzer once and read its report."""
    command, environment = perf_analyzer_command()
    report = inputs.with_name(f"report-{concurrency}.csv")
    done = subprocess.run(
        [
            *command,
            *("-m", "ensemble", "-i", "grpc", "-u", grpc_url, "--streaming", "--async"),
            *("--input-data", str(inputs), "--concurrency-range", str(concurrency)),
            *("--measurement-mode", "count_windows"),
            *("--measurement-request-count", str(requests)),
            *("--stability-percentage", "50", "--max-trials", "10"),
            *("-f", str(report)),
        ],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0 or not report.exists():
        last = (done.stderr + done.stdout).strip().splitlines()
        raise BlockdiffError(f"perf_analyzer failed: {' | '.join(last[-3:])}")
    (line,) = csv.DictReader(report.read_text().splitlines())
    return Row(
        concurrency,
        float(line["Inferences/Second"]),
        float(line.get("Response Throughput") or "nan"),
        *(float(line[f"p{percent} latency"]) / 1000 for percent in (50, 95, 99)),
    )


def table(rows: list[Row]) -> str:
    lines = [
        "| concurrency | requests/s | responses (blocks)/s | latency p50 / p95 / p99, ms |",
        "|---|---|---|---|",
    ]
    for row in rows:
        latency = f"{row.p50:.0f} / {row.p95:.0f} / {row.p99:.0f}"
        rates = f"{row.requests_per_second:.1f} | {row.blocks_per_second:.1f}"
        lines.append(f"| {row.concurrency} | {rates} | {latency} |")
    return "\n".join(lines)


def run(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")] = CHECKPOINT,
    concurrency: Annotated[str, typer.Option(help="Comma-separated.")] = "1,4,8",
    requests: Annotated[int, typer.Option(help="Requests in a measurement window.")] = 100,
    threads: Annotated[int, typer.Option(help="CPU threads of the engine.")] = 1,
) -> None:
    """Start the server, run perf_analyzer at each concurrency, stop the server, print a table."""
    levels = [int(word) for word in concurrency.split(",")]
    started = time.monotonic()

    def say(line: str) -> None:
        typer.echo(f"{time.monotonic() - started:6.1f} s  {line}", err=True)

    options = ServeOptions(
        model=model, http_port=None, grpc_port=None, metrics_port=None, threads=threads
    )
    installation = find_installation(say)
    with tempfile.TemporaryDirectory(prefix="blockdiff-perf-") as folder:
        inputs = Path(folder) / "inputs.json"
        write_inputs(model / "eval_prompts.jsonl", inputs, 80)
        with make_server(options, Path(folder), installation) as server:
            server.start(progress=say)
            rows = []
            for level in levels:
                say(f"perf_analyzer at concurrency {level}")
                rows.append(measure(server.grpc_url, inputs, level, requests))
    typer.echo(table(rows))


if __name__ == "__main__":
    try:
        typer.run(run)
    except ConfigError as error:
        sys.exit(f"error: {error}")
