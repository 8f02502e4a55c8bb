"""A made server in the foreground: started, watched, its addresses said, ended by a signal.

Knows the terminal and signals; knows no flags.
"""

import json
import signal
from pathlib import Path
from types import FrameType

import typer

from blockdiff.embedded import TritonServer
from blockdiff.embedded.repository import ENGINE_MODEL
from blockdiff.embedded.supervisor import Supervisor, SupervisorPolicy
from blockdiff.serving.relay import CancelRelay

RELAY = "relay.sock"
HEARTBEAT = "heartbeat.json"


def how_to_call(server: TritonServer, log_file: Path) -> str:
    """What to type now, for a person."""
    messages = json.dumps(json.dumps([{"role": "user", "content": "sort 52 7 31 88"}]))
    body = f'{{"messages": {messages}, "max_tokens": 64, "stream": %s}}'
    generate = f"{server.http_url}/v2/models/ensemble"
    return "\n".join(
        [
            f"ready: HTTP {server.http_url}  gRPC {server.grpc_url}  metrics {server.metrics_url}",
            f"server log: {log_file}",
            "whole answer:",
            f"  curl -s {generate}/generate -d '{body % 'false'}'",
            "block by block:",
            f"  curl -sN {generate}/generate_stream -d '{body % 'true'}'",
            "chat in the terminal:",
            f"  blockdiff-client chat --url {server.grpc_url}",
            "press Ctrl-C to stop (running requests may finish; twice stops at once)",
        ]
    )


def say(line: str) -> None:
    """Progress for the person at the terminal."""
    typer.echo(f"blockdiff: {line}", err=True)


def run_supervised(
    server: TritonServer, work: Path, policy: SupervisorPolicy, output_format: str
) -> int:
    """Run until a signal or until the server cannot be kept up."""

    def announce() -> None:
        urls = {
            "http": server.http_url,
            "grpc": server.grpc_url,
            "metrics": server.metrics_url,
            "pid": server.pid,
            "log": str(server.log_path),
        }
        as_json = output_format == "json"
        typer.echo(json.dumps(urls) if as_json else how_to_call(server, server.log_path))

    has_engine = (server.model_repository / ENGINE_MODEL).is_dir()
    supervisor = Supervisor(
        server,
        policy,
        heartbeat_path=work / HEARTBEAT,
        refuse_new=CancelRelay(work / RELAY).drain if has_engine else None,
        on_ready=announce,
        say=say,
    )

    def stop(number: int, frame: FrameType | None) -> None:
        if supervisor.is_stopping:
            raise KeyboardInterrupt
        supervisor.request_stop()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with server:
            return supervisor.run()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
