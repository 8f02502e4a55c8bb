"""What `blockdiff serve` tells the person at the terminal can be typed as it stands."""

import json
import shlex
from pathlib import Path

from blockdiff.cli.serve_run import how_to_call
from blockdiff.embedded import TritonServer
from blockdiff.serving.fields import BY_NAME
from blockdiff.serving.messages import parse_messages


def test_printed_commands_are_complete(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    ports = {"http_port": 18000, "grpc_port": 18001, "metrics_port": 18002}
    text = how_to_call(TritonServer(tmp_path, log_path=log, **ports), log)
    calls = [shlex.split(line) for line in text.splitlines() if line.startswith("  curl ")]
    assert [call[2].rsplit("/", 1)[1] for call in calls] == ["generate", "generate_stream"]
    for call, is_streamed in zip(calls, (False, True), strict=True):
        assert call[2].startswith("http://127.0.0.1:18000/v2/models/ensemble/")
        assert call[3] == "-d"
        body = json.loads(call[4])
        assert body["stream"] is is_streamed and body.keys() <= BY_NAME.keys()
        assert parse_messages(body["messages"])[0]["role"] == "user"
    assert "blockdiff-client chat --url 127.0.0.1:18001" in text
    assert "http://127.0.0.1:18002/metrics" in text and str(log) in text
    assert "Ctrl-C" in text
