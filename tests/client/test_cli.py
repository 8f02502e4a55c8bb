"""`blockdiff-client`: output piped and on a terminal, exit codes, Ctrl-C in a chat."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner, Result

from blockdiff_client.cli.flags import FLAGS
from blockdiff_client.cli.main import app
from blockdiff_client.types import CallOptions, Options

from .fake_server import Abort, Block, FakeTriton, Hang, answer, free_port, tool_call_json

COMMAND = [sys.executable, "-m", "blockdiff_client.cli"]


def invoke(fake: FakeTriton, *arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner(env={"BLOCKDIFF_URL": fake.url}).invoke(app, arguments, input=stdin)


def test_every_field_has_a_flag() -> None:
    fields = set(Options.__annotations__) | set(CallOptions.__annotations__)
    # Given otherwise: --model and --request-id are per command, --retries stands for retry.
    assert {flag.name for flag in FLAGS} == fields - {"model", "request_id", "retry"} | {"retries"}


def test_generate_prints_the_text(fake: FakeTriton) -> None:
    result = invoke(fake, "generate", "sort 2 1", "--max-tokens", "9", "--stop", "a", "--stop", "b")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "hello world\n", "")
    inputs = fake.seen[0].inputs
    assert (inputs["text_input"], inputs["max_tokens"]) == ("sort 2 1", 9)
    assert inputs["stop_words"] == ["a", "b"]
    assert "temperature" not in inputs and "bad_words" not in inputs


def test_the_prompt_may_come_on_stdin(fake: FakeTriton) -> None:
    for arguments in (("generate",), ("generate", "-")):
        assert invoke(fake, *arguments, stdin="三加五\n").exit_code == 0
        assert fake.seen[-1].inputs["text_input"] == "三加五"


def test_messages_and_tools_from_files(fake: FakeTriton, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_text('[{"role": "user", "content": "hi"}]')
    (tmp_path / "tools.json").write_text('[{"name": "f"}]')
    fake.default = [
        Block("", tool_calls=tool_call_json("f", x=1), final=True, flag=True, finish="tool_calls")
    ]
    chat, tools = f"@{tmp_path / 'chat.json'}", str(tmp_path / "tools.json")
    result = invoke(fake, "generate", "--messages", chat, "--tools", tools)
    assert (result.exit_code, result.stdout) == (0, 'tool call: f {"x": 1}\n')
    assert json.loads(fake.seen[0].inputs["tools"]) == [{"name": "f"}]
    assert "text_input" not in fake.seen[0].inputs


def test_json_output_holds_everything(fake: FakeTriton) -> None:
    result = invoke(fake, "generate", "x", "--format", "json", "--request-id", "r9")
    got: dict[str, Any] = json.loads(result.stdout)
    assert (got["text"], got["request_id"], got["finish_reason"]) == ("hello world", "r9", "stop")
    assert [block["denoise_steps"] for block in got["blocks"]] == [2, 2]
    assert got["tokens_per_forward"] == 2.0


BAD_INPUT: dict[str, list[str]] = {
    "unknown flag": ["generate", "x", "--no-such-flag"],
    "not a number": ["generate", "x", "--max-tokens", "many"],
    "prompt and messages": ["generate", "x", "--messages", "[]"],
    "missing tools file": ["generate", "x", "--tools", "/nonexistent.json"],
    "missing messages file": ["generate", "--messages", "@/nonexistent.json"],
    "negative deadline": ["generate", "x", "--deadline", "-1"],
    "negative retries": ["generate", "x", "--retries", "-1"],
    "http address": ["generate", "x", "--url", "http://localhost:8000"],
    "unknown command": ["dance"],
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_exits_with_2(fake: FakeTriton, name: str) -> None:
    result = invoke(fake, *BAD_INPUT[name])
    assert result.exit_code == 2
    assert result.stdout == "" and "Traceback" not in result.stderr
    assert result.stderr.strip().splitlines()[-1].lower().startswith("error: ")
    assert fake.seen == []


def test_invalid_utf8_on_stdin_exits_with_2(fake: FakeTriton) -> None:
    result = invoke(fake, "generate", stdin=b"ab\xff")
    assert result.exit_code == 2
    assert result.stderr == "error: stdin: byte 2 is not valid UTF-8\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 2),
        (grpc.StatusCode.NOT_FOUND, 2),
        (grpc.StatusCode.UNIMPLEMENTED, 2),
        (grpc.StatusCode.UNAVAILABLE, 1),
        (grpc.StatusCode.INTERNAL, 1),
    ],
)
def test_server_errors(fake: FakeTriton, code: grpc.StatusCode, expected: int) -> None:
    fake.default = [Abort(code, "in ensemble 'ensemble', [brackets] stay")]
    result = invoke(fake, "generate", "x", "--retries", "0")
    assert (result.exit_code, result.stderr) == (expected, "error: [brackets] stay\n")


def test_health_exit_codes(fake: FakeTriton) -> None:
    result = invoke(fake, "health")
    assert result.exit_code == 0 and "ensemble: ready" in result.stdout
    assert json.loads(invoke(fake, "health", "--format", "json").stdout)["is_healthy"]
    fake.is_ready = False
    assert invoke(fake, "health").exit_code == 1
    result = invoke(fake, "health", "--url", f"127.0.0.1:{free_port()}")
    assert result.exit_code == 1 and "unreachable" in result.stdout


@pytest.mark.parametrize("command", ["generate", "chat", "health"])
def test_help_has_examples(fake: FakeTriton, command: str) -> None:
    result = invoke(fake, command, "--help")
    assert result.exit_code == 0
    assert f"blockdiff-client {command}" in result.stdout.split("Examples:")[1]


def test_piped_chat_keeps_the_conversation(fake: FakeTriton) -> None:
    fake.default = answer("one", finish="stop")
    turns = "first\n\n/system be brief\nsecond\n/reset\nthird\n/exit\nnever\n"
    result = invoke(fake, "chat", "--system", "be kind", stdin=turns)
    assert (result.exit_code, result.stdout) == (0, "one\none\none\n")
    first, second, third = (json.loads(seen.inputs["messages"]) for seen in fake.seen)
    assert [turn["content"] for turn in first] == ["be kind", "first"]
    assert [turn["content"] for turn in second] == ["be brief", "first", "one", "second"]
    assert [turn["content"] for turn in third] == ["be brief", "third"]


def test_a_failed_turn_is_forgotten_and_sets_the_exit_code(fake: FakeTriton) -> None:
    fake.scripts = [answer("ok"), [Abort(grpc.StatusCode.INVALID_ARGUMENT, "too long")]]
    result = invoke(fake, "chat", stdin="a\nb\n")
    assert (result.exit_code, result.stderr) == (2, "error: too long\n")
    invoke(fake, "chat", stdin="a\n")
    assert len(json.loads(fake.seen[-1].inputs["messages"])) == 1


def test_a_closed_pipe_is_quiet(fake: FakeTriton) -> None:
    fake.default = [Block("x" * 200_000, index) for index in range(20)] + answer("")
    done = subprocess.run(
        f"{sys.executable} -m blockdiff_client.cli generate x --url {fake.url} | head -c 1",
        shell=True,
        capture_output=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == (b"x", b"")


# As at a terminal; a test run in the background has inherited that SIGINT is ignored. Not between
# fork and exec: the server's threads live in this process, and gRPC does not survive that always.
HEEDING_INTERRUPTS = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "runpy.run_module('blockdiff_client.cli', run_name='__main__', alter_sys=True)"
)


class Terminal:
    """The command on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self._fd, child_fd = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", HEEDING_INTERRUPTS, *arguments],
            stdin=child_fd,
            stdout=child_fd,
            stderr=child_fd,
            env=environment,
            start_new_session=True,
        )
        os.close(child_fd)
        self.output = ""

    def send(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def read_until(self, text: str, seconds: float = 20.0) -> str:
        """Output up to and with ``text``; what follows is kept for the next call."""
        os.set_blocking(self._fd, False)
        end = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < end, f"no {text!r} in {self.output!r}"
            try:
                self.output += os.read(self._fd, 65536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.01)
        head, _, self.output = self.output.partition(text)
        return head + text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._fd)


@pytest.fixture
def terminal(fake: FakeTriton) -> Iterator[Any]:
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments, "--url", fake.url))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_a_terminal_gets_dim_reasoning_and_figures(fake: FakeTriton, terminal: Any) -> None:
    fake.default = [
        Block("", 0, reasoning="carry one"),
        Block("825\x1b[2J", 1, final=True, flag=True, finish="stop"),
    ]
    screen = terminal("generate", "458+367")
    shown = screen.read_until("tokens/s · stop")
    assert "\x1b[2;3mcarry one\x1b[0m" in shown
    assert "825␛[2J" in shown
    assert "2 blocks · 4 denoise steps · 8 tokens · TPF 2.0 · " in shown
    assert screen.process.wait(10) == 0


def test_ctrl_c_cancels_the_answer_and_not_the_chat(fake: FakeTriton, terminal: Any) -> None:
    fake.scripts = [[Block("begun"), Hang()], answer("second")]
    screen = terminal("chat")
    screen.read_until("> ")
    screen.send("go\n")
    screen.read_until("begun")
    screen.interrupt()
    screen.read_until("cancelled")
    assert fake.seen[0].cancelled.wait(5)
    screen.read_until("> ")
    screen.interrupt()
    screen.read_until("leaves")
    screen.read_until("> ")
    screen.send("again\n")
    screen.read_until("second")
    messages = json.loads(fake.seen[1].inputs["messages"])
    assert [turn["content"] for turn in messages] == ["go", "begun", "again"]
    screen.read_until("> ")
    screen.send("\x04")
    assert screen.process.wait(10) == 0


def test_ctrl_c_before_the_first_block(fake: FakeTriton, terminal: Any) -> None:
    fake.scripts = [[Hang()]]
    screen = terminal("chat")
    screen.read_until("> ")
    screen.send("go\n")
    screen.read_until("waiting for the first block")
    fake.wait_for_requests(1)
    screen.interrupt()
    screen.read_until("cancelled")
    screen.read_until("> ")
    screen.send("again\n")
    screen.read_until("hello world")
    assert len(json.loads(fake.seen[1].inputs["messages"])) == 1


def test_ctrl_c_ends_generate(fake: FakeTriton, terminal: Any) -> None:
    fake.default = [Block("begun"), Hang()]
    screen = terminal("generate", "x")
    screen.read_until("begun")
    screen.interrupt()
    screen.read_until("interrupted")
    assert screen.process.wait(10) == 1
    assert fake.seen[0].cancelled.wait(5)
