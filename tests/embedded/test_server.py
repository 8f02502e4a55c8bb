"""Starting and stopping a real tritonserver on a trivial repository."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch

import blockdiff
from blockdiff.embedded import ServerError, TritonServer
from blockdiff.errors import ConfigError
from tests.embedded.conftest import REPOSITORY, all_ended, regions, wait_until

pytestmark = pytest.mark.server


def test_start_and_stop_leave_nothing(make_server):
    said: list[str] = []
    server: TritonServer = make_server()
    server.start(timeout=60, progress=said.append)
    pids = [server.pid, *server.stubs()]
    prefix = server.shared_memory_prefix
    assert sorted(server.stubs().values()) == ["counter", "plain"]
    assert "model counter is loaded" in said
    assert len(regions(prefix)) == 2
    assert server.stop() == 0
    assert all_ended(pids)
    assert regions(prefix) == []
    assert not server.is_running()


def test_models_import_what_this_process_imports(make_server):
    server = make_server()
    server.start(timeout=60)
    body = {"inputs": [{"name": "TEXT", "shape": [1], "datatype": "BYTES", "data": ["x"]}]}
    url = f"{server.http_url}/v2/models/plain/infer"
    with urllib.request.urlopen(url, json.dumps(body).encode()) as reply:
        report = json.loads(json.load(reply)["outputs"][0]["data"][0])
    assert report["version"] == sys.version.split()[0]
    assert report["blockdiff"] == blockdiff.__file__
    assert report["torch"] == torch.__version__
    assert report["sum"] == 64.0


def test_running_stream_finishes_when_the_server_is_stopped(make_server, open_stream):
    server = make_server()
    server.start(timeout=60)
    stream = open_stream(server.grpc_url, 8, 0.2)
    assert stream.next() == 0
    server.terminate()
    assert [stream.next() for _ in range(7)] == [1, 2, 3, 4, 5, 6, 7]
    stream.close()
    server.stop(graceful_seconds=1)
    assert not server.is_running()


@pytest.mark.parametrize("name", ["http_port", "grpc_port", "metrics_port"])
def test_port_in_use_is_one_line_that_names_it(make_server, name):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        server = make_server(**{name: port})
        with pytest.raises(ConfigError) as caught:
            server.start(timeout=60)
    assert f"{name.replace('_', ' ')} {port}: already in use" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not server.is_running()


def test_model_that_fails_to_load_ends_the_start_with_its_reason(make_server, tmp_path):
    model = tmp_path / "repository" / "broken"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "python"\nmax_batch_size: 0\n')
    (model / "1" / "model.py").write_text(
        "class TritonPythonModel:\n"
        "    def initialize(self, args):\n"
        "        raise ValueError('the weights are green')\n"
    )
    server = make_server(tmp_path / "repository")
    with pytest.raises(ServerError, match="the weights are green"):
        server.start(timeout=60)
    assert not server.is_running()
    assert regions(server.shared_memory_prefix) == []


def test_missing_repository_is_refused(make_server, tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        make_server(tmp_path / "nothing").start()


def test_killed_launcher_takes_everything_with_it(tmp_path):
    code = (
        "import sys, time, json\n"
        "from pathlib import Path\n"
        "from blockdiff.embedded import TritonServer\n"
        f"repository, log = Path({str(REPOSITORY)!r}), Path({str(tmp_path / 'log')!r})\n"
        "server = TritonServer(repository, log_path=log)\n"
        "server.start(60)\n"
        "prefix = server.shared_memory_prefix\n"
        "print(json.dumps([prefix, server.pid, *server.stubs()]), flush=True)\n"
        "time.sleep(600)\n"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    prefix, *pids = json.loads(launcher.stdout.readline())
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    launcher.stdout.close()
    assert wait_until(lambda: all_ended(pids), 5)
    assert wait_until(lambda: not regions(prefix), 5)


def test_killed_guard_takes_the_server_with_it(make_server):
    server = make_server()
    server.start(timeout=60)
    pids = [server.pid, *server.stubs()]
    stat = Path(f"/proc/{server.pid}/stat").read_text()
    guard = int(stat.rsplit(")", 1)[1].split()[1])
    os.kill(guard, signal.SIGKILL)
    assert wait_until(lambda: all_ended(pids), 10)


def test_restart_keeps_the_ports(make_server):
    server = make_server()
    server.start(timeout=60)
    ports = server.ports
    server.stop(graceful_seconds=0)
    server.start(timeout=60)
    assert server.ports == ports
    assert server.is_ready()
