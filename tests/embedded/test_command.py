"""The commands `serve` and `doctor` and the program around them, as a user types them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from blockdiff.cli import main as program
from blockdiff.errors import CapacityError, ConfigError
from blockdiff.weights.manifest import MANIFEST, write_manifest
from tests.embedded.conftest import REPOSITORY, all_ended

BLOCKDIFF = [sys.executable, "-m", "blockdiff.cli.main"]
PORTS = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]


def blockdiff(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BLOCKDIFF, *arguments], capture_output=True, text=True, timeout=timeout)


def last_line(errors: str) -> str:
    """The error line; progress lines may come before it."""
    assert "Traceback" not in errors, errors
    return errors.strip().splitlines()[-1]


def test_overview_does_not_import_torch():
    code = (
        "import sys\n"
        "from blockdiff.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for name in program.COMMANDS:
        assert name in result.stdout


@pytest.mark.parametrize("name", list(program.COMMANDS))
def test_every_command_has_help_with_examples(capsys, name):
    assert program.run([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"blockdiff {name}" in said.split("Usage:", 1)[1].split("Options", 1)[0]
    assert f"Examples:\n\n  blockdiff {name}" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["serve"], "Missing option '--model'"),
        (["serve", "--model", "x", "--slots", "0"], "'--slots'"),
        (["serve", "--model", "x", "--slots", "4097"], "'--slots'"),
        (["serve", "--model", "/nothing"], "model folder /nothing: not found"),
        (["serve", "--model", "/nothing", "--format", "xml"], "allowed are text and json"),
        (["serve", "--model", "x", "--tool-form", "xml"], "allowed are hermes, qwen_xml"),
        (["serve", "--model", "x", "--load-aware-steps", "0.5"], "only with --load-aware"),
        (["serve", "--model", "x", "--load-aware", "--load-aware-threshold", "2"], "threshold"),
        (["doctor", "--format", "xml"], "allowed are table and json"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(capsys, arguments, message):
    assert program.run(arguments) == 2
    line = last_line(capsys.readouterr().err)
    assert line.startswith("blockdiff: ")
    assert message in line


@pytest.mark.parametrize(("error", "code"), [(ConfigError("a\nb"), 2), (CapacityError("full"), 1)])
def test_expected_errors_become_one_line(monkeypatch, capsys, error, code):
    def command() -> None:
        raise error

    module = type(sys)("fake_command")
    module.command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_command", module)
    monkeypatch.setitem(
        program.COMMANDS, "fake", program.Command("fake_command", "command", "", ())
    )
    assert program.run(["fake"]) == code
    assert capsys.readouterr().err == f"blockdiff: {' '.join(str(error).split())}\n"


def test_doctor_as_json_finds_no_fault_here():
    result = blockdiff("doctor", "--format", "json")
    findings = {finding["name"]: finding for finding in json.loads(result.stdout)}
    assert result.returncode == 0, result.stdout
    for name in ("python", "libpython", "tritonserver", "torch", "shared memory", "perf_analyzer"):
        assert findings[name]["level"] in ("ok", "warn")
        assert findings[name]["level"] == "ok" or findings[name]["advice"]


def test_doctor_says_whether_the_weights_can_be_verified(tmp_path):
    folder = _copied_demo(tmp_path)
    with_manifest = blockdiff("doctor", "--model", str(folder)).stdout
    assert "form hermes: the chat template has <tool_call>" in with_manifest
    assert "contents not compared here; manifest " in with_manifest
    assert f"blockdiff weights verify {folder}" in with_manifest
    (folder / "blockdiff-manifest.json").unlink()
    without = blockdiff("doctor", "--model", str(folder)).stdout
    assert "warn" in without and f"blockdiff weights manifest {folder}" in without


def test_doctor_names_a_missing_checkpoint_and_a_taken_port():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        result = blockdiff("doctor", "--model", "/nothing", "--http-port", port)
    assert result.returncode == 1
    assert f"{port} in use" in result.stdout
    assert "fail checkpoint" in result.stdout


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A checkpoint folder that is only looked at when the repository has an engine."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    return folder


@pytest.mark.server
def test_serve_announces_finishes_a_stream_and_leaves_nothing(checkpoint, open_stream):
    process = subprocess.Popen(
        [*BLOCKDIFF, "serve", "--model", str(checkpoint), "--model-repository", str(REPOSITORY)]
        + [*PORTS, "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        urls = json.loads(process.stdout.readline())
        stream = open_stream(urls["grpc"], 10, 0.2)
        assert stream.next() == 0
        process.send_signal(signal.SIGTERM)
        assert [stream.next() for _ in range(9)] == list(range(1, 10))
        stream.close()
        assert process.wait(30) == 0
        assert all_ended([urls["pid"]])
    finally:
        process.kill()
        errors = process.communicate()[1]
    assert "stopping: running requests may finish" in errors
    assert "Traceback" not in errors


@pytest.mark.server
def test_second_interrupt_stops_at_once(checkpoint, open_stream):
    process = subprocess.Popen(
        [*BLOCKDIFF, "serve", "--model", str(checkpoint), "--model-repository", str(REPOSITORY)]
        + [*PORTS, "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    urls = json.loads(process.stdout.readline())
    stream = open_stream(urls["grpc"], 1000, 0.1)
    assert stream.next() == 0
    process.send_signal(signal.SIGINT)
    while "stopping" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 1
    assert all_ended([urls["pid"]])
    process.communicate()


@pytest.mark.server
def test_serve_on_a_taken_port_exits_2(checkpoint):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        result = blockdiff(
            *["serve", "--model", str(checkpoint), "--model-repository", str(REPOSITORY)],
            *["--http-port", port, "--grpc-port", "0", "--metrics-port", "0"],
        )
    assert result.returncode == 2
    assert f"http port {port}: already in use" in last_line(result.stderr)
    # noticed before the weights are hashed
    assert "manifest" not in result.stderr


def _copied_demo(tmp_path: Path) -> Path:
    source = Path(os.environ.get("BLOCKDIFF_TEST_CHECKPOINT", "demo/checkpoint"))
    if not source.is_absolute():
        source = Path(__file__).resolve().parents[2] / source
    target = tmp_path / "copy"
    shutil.copytree(source, target)
    return target


@pytest.mark.parametrize("damage", ["missing shard", "truncated shard", "no mask id", "tokenizer"])
def test_bad_checkpoint_is_found_before_a_server_starts(tmp_path, capsys, monkeypatch, damage):
    monkeypatch.delattr("blockdiff.cli.serve.find_installation")
    folder = _copied_demo(tmp_path)
    shard = sorted(folder.glob("*.safetensors"))[0]
    expected = shard.name
    if damage == "missing shard":
        shard.unlink()
    elif damage == "truncated shard":
        shard.write_bytes(shard.read_bytes()[:-100])
    elif damage == "no mask id":
        config = json.loads((folder / "config.json").read_text())
        del config["mask_token_id"]
        (folder / "config.json").write_text(json.dumps(config))
        expected = "mask_token_id"
    else:
        (folder / "tokenizer.json").unlink()
        expected = "tokenizer.json"
    for command in (["serve", *PORTS], ["generate", "--prompt", "x"]):
        assert program.run([*command, "--model", str(folder)]) == 2
        assert expected in last_line(capsys.readouterr().err)


def flip_a_byte(folder: Path) -> str:
    shard = sorted(folder.glob("*.safetensors"))[0]
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    return shard.name


def add_a_file(folder: Path) -> str:
    (folder / "pytorch_model.bin").write_bytes(b"x")
    return "pytorch_model.bin"


def swap_shards(folder: Path) -> str:
    first, second = sorted(folder.glob("*.safetensors"))
    first.rename(folder / "other")
    second.rename(first)
    (folder / "other").rename(second)
    return first.name


@pytest.mark.parametrize("damage", [flip_a_byte, add_a_file, swap_shards])
def test_weights_that_do_not_fit_their_manifest_are_not_served(
    tmp_path, capsys, monkeypatch, damage
):
    folder = _copied_demo(tmp_path)
    write_manifest(folder)
    bad = damage(folder)
    monkeypatch.delattr("blockdiff.cli.serve.find_installation")
    assert program.run(["serve", *PORTS, "--model", str(folder)]) == 2
    assert bad in last_line(capsys.readouterr().err)


@pytest.mark.parametrize("way", ["--no-verify", "environment", "no manifest"])
def test_what_is_not_verified_is_said_and_served(tmp_path, capsys, monkeypatch, way):
    folder = _copied_demo(tmp_path)
    write_manifest(folder)
    flip_a_byte(folder)
    if way == "environment":
        monkeypatch.setenv("BLOCKDIFF_VERIFY", "no")
    elif way == "no manifest":
        (folder / MANIFEST).unlink()

    def stop(say: object) -> None:
        raise ConfigError("it would start now")

    monkeypatch.setattr("blockdiff.cli.serve.find_installation", stop)
    flags = ["--no-verify"] if way == "--no-verify" else []
    assert program.run(["serve", *PORTS, "--model", str(folder), *flags]) == 2
    errors = capsys.readouterr().err
    assert "it would start now" in last_line(errors)
    assert ("has no manifest" if way == "no manifest" else "(not verified)") in errors


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "tpu"], "device is 'tpu'"),
        (["--dtype", "int3"], "dtype is 'int3'"),
        (["--max-context", "5000000"], "--max-context 5000000: the model allows 1 to "),
    ],
)
def test_what_the_model_cannot_do_is_found_before_a_server_starts(
    tmp_path, capsys, monkeypatch, flags, message
):
    monkeypatch.delattr("blockdiff.cli.serve.find_installation")
    assert program.run(["serve", *PORTS, "--model", str(_copied_demo(tmp_path)), *flags]) == 2
    assert message in last_line(capsys.readouterr().err)


@pytest.mark.parametrize(("flag", "value"), [("--http-port", "70000"), ("--host", "192.0.2.1")])
def test_impossible_addresses_exit_2(checkpoint, capsys, flag, value):
    arguments = ["serve", "--model", str(checkpoint), "--model-repository", str(REPOSITORY)]
    assert program.run([*arguments, *PORTS, flag, value]) == 2
    assert value in last_line(capsys.readouterr().err)
