"""Small parts without a server: ports, log reading, heartbeat, repository, installation."""

import json
import socket
import time
from pathlib import Path

import pytest

from blockdiff.embedded import installation, interpreter, shared_memory
from blockdiff.embedded.checks import check_ports
from blockdiff.embedded.heartbeat import read_heartbeat
from blockdiff.embedded.logfile import LogFollower
from blockdiff.embedded.ports import free_ports, is_free, require_address, require_free
from blockdiff.embedded.repository import build_repository, set_parameter, template_repository
from blockdiff.errors import ConfigError


def test_free_ports_are_different():
    assert len(set(free_ports(5))) == 5


def test_doubled_and_impossible_ports_are_refused():
    port = free_ports(1)[0]
    with pytest.raises(ConfigError, match=f"grpc port {port}: already given as http port"):
        require_free({"http port": port, "grpc port": port}, "127.0.0.1")
    with pytest.raises(ConfigError, match="http port 70000: allowed are 1 to 65535"):
        require_free({"http port": 70000}, "127.0.0.1")
    assert not is_free(70000)


@pytest.mark.parametrize("host", ["999.1.1.1", "192.0.2.1", "::g"])
def test_foreign_address_is_refused(host):
    with pytest.raises(ConfigError, match=f"host {host}: cannot be listened on"):
        require_address(host)
    assert check_ports(host, (8000,)).level == "fail"


def test_impossible_port_is_a_finding():
    assert check_ports("127.0.0.1", (70000,)).detail == "70000: allowed are 0 to 65535"


def test_taken_port_is_named():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError, match=f"http port {port}: already in use on 127.0.0.1"):
            require_free({"http port": port}, "127.0.0.1")


def test_log_gives_progress_and_the_first_real_error(tmp_path):
    log = tmp_path / "log"
    start = "I1130 12:00:00.000001 7 model_lifecycle.cc:473] "
    log.write_text(
        f'{start}"loading: engine:1"\n'
        'E1130 12:00:00.000002 7 cuda.cc:1] "CudaDriverHelper has not been initialized."\n'
        'E1130 12:00:00.000003 7 pb_stub.cc:2] "Failed: no weights\\n\\nAt:\\n  model.py(3)"\n'
        'E1130 12:00:00.000004 7 main.cc:2] "creating server: Internal"\n'
        f"{start}\"successfully loaded 'engi"
    )
    follower = LogFollower(log)
    assert follower.progress_lines() == ["loading model engine"]
    with log.open("a") as handle:
        handle.write("ne'\"\n")
    assert follower.progress_lines() == ["model engine is loaded"]
    assert follower.last_error() == "Failed: no weights"


def test_log_says_what_was_wrong_with_the_command_line(tmp_path):
    log = tmp_path / "log"
    log.write_text("tritonserver: unrecognized option '--nothing'\nUsage: tritonserver\n")
    assert LogFollower(log).last_error() == "tritonserver: unrecognized option '--nothing'"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "monotonic": 1}'])
def test_half_written_heartbeat_is_no_heartbeat(tmp_path, text):
    (tmp_path / "beat").write_text(text)
    assert read_heartbeat(tmp_path / "beat") is None
    assert read_heartbeat(tmp_path / "missing") is None


def test_heartbeat_tells_age_and_end(tmp_path):
    path = tmp_path / "beat"
    path.write_text(json.dumps({"pid": 5, "monotonic": time.monotonic() - 3, "running": 2}))
    beat = read_heartbeat(path)
    assert beat is not None
    assert (beat.pid, beat.running, beat.has_stopped) == (5, 2, False)
    assert 3 <= beat.age() < 4
    path.write_text(json.dumps({"pid": 5, "monotonic": 0.0}))
    stopped = read_heartbeat(path)
    assert stopped is not None
    assert stopped.has_stopped


def test_parameter_is_replaced_or_added():
    text = 'parameters { key: "dtype" value { string_value: "" } }\n'
    assert 'string_value: "bfloat16"' in set_parameter(text, "dtype", "bfloat16")
    assert set_parameter(text, "dtype", "a").count("dtype") == 1
    added = set_parameter("name: 'x'", "device", 'a"b\\c')
    assert 'key: "device" value { string_value: "a\\"b\\\\c" }' in added


def test_repository_is_copied_and_configured(tmp_path):
    target = build_repository(
        template_repository(),
        tmp_path / "repository",
        max_queue_size=7,
        parameters={"dtype": "bfloat16"},
    )
    text = (target / "block_diffusion" / "config.pbtxt").read_text()
    assert "max_queue_size: 7" in text
    assert 'key: "dtype" value { string_value: "bfloat16" }' in text
    assert (target / "ensemble" / "1").is_dir()
    assert not list(target.rglob("__pycache__"))


def test_folder_without_models_is_no_repository(tmp_path):
    with pytest.raises(ConfigError, match=r"no \*/config.pbtxt"):
        build_repository(tmp_path, tmp_path / "target")


def test_small_shared_memory_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(shared_memory, "shared_memory_free", lambda: 4 << 20)
    with pytest.raises(ConfigError, match="/dev/shm: 4 MiB free, 16 MiB needed; enlarge it"):
        shared_memory.require_shared_memory()


def _fake_container(root: Path, python: str) -> Path:
    stub = root / "backends" / "python" / installation.STUB_NAME
    stub.parent.mkdir(parents=True)
    stub.write_bytes(b"\x7fELF..." + f"libpython{python}.so.1.0".encode() + b"\0")
    (root / "bin").mkdir()
    (root / "bin" / "tritonserver").touch(0o755)
    (root / "TRITON_VERSION").write_text("2.70.0\n")
    return root / "bin"


def test_server_on_path_wins(tmp_path, monkeypatch):
    folder = _fake_container(tmp_path, interpreter.VERSION)
    monkeypatch.setenv("PATH", str(folder))
    found = installation.find_installation()
    assert (found.source, found.version) == ("path", "2.70.0")
    assert found.binary == folder / "tritonserver"


def test_server_for_another_python_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(_fake_container(tmp_path, "3.13")))
    with pytest.raises(ConfigError, match=r"runs Python 3\.13, this is Python"):
        installation.find_installation()
