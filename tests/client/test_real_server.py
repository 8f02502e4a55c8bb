"""The client and `blockdiff-client` against the real server and model repository.

Most tests run over the scripted engine of tests/server; the last one over the trained checkpoint.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from blockdiff.embedded import TritonServer
from blockdiff_client import (
    Client,
    DeadlineExceeded,
    InvalidArgument,
    RetryPolicy,
    ServerSilent,
    Unsupported,
)
from blockdiff_client.cli.main import app

from ..server import conftest as servers

pytestmark = pytest.mark.server

# A fixture belongs to the module that holds its name.
scripted_model = servers.scripted_model
make_repository = servers.make_repository
make_server = servers.make_server
wide = servers.wide
demo = servers.demo

ONCE = RetryPolicy(attempts=1)
TEXT = "the quick brown fox 三加五等于几 👋🏽 jumps over the lazy dog"


def script(text: str = TEXT, **behaviour: object) -> str:
    return json.dumps({"text": text, "block": 8, **behaviour})


def test_a_whole_answer(wide: TritonServer) -> None:
    with Client(wide.grpc_url) as client:
        result = client.generate(script(), max_tokens=500, request_id="r1")
    assert (result.text, result.finish_reason) == (TEXT, "stop")
    assert [block.block_index for block in result.blocks] == list(range(len(result.blocks)))
    assert len(result.blocks) > 3 and result.blocks[-1].is_final
    assert result.num_input_tokens > 0 and result.num_output_tokens > len(result.blocks)
    assert result.denoise_steps >= len(result.blocks)


def test_many_at_once(wide: TritonServer) -> None:
    with Client(wide.grpc_url) as client, ThreadPoolExecutor(64) as pool:
        texts = [f"{index} {TEXT}" for index in range(200)]
        results = pool.map(lambda text: client.generate(script(text), max_tokens=500), texts)
        assert [result.text for result in results] == texts


def test_reasoning_and_tool_calls(wide: TritonServer) -> None:
    tool = {"type": "function", "function": {"name": "get_time", "parameters": {}}}
    call = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Genève"}}\n</tool_call>'
    with Client(wide.grpc_url) as client:
        user = [{"role": "user", "content": script("the carries\n</think>\n\n825")}]
        result = client.generate(messages=user, enable_thinking=True, max_tokens=500)
        assert (result.reasoning, result.text) == ("the carries", "825")
        user = [{"role": "user", "content": script(call)}]
        result = client.generate(messages=user, tools=[tool], max_tokens=500)
    assert (result.text, result.finish_reason) == ("", "tool_calls")
    (made,) = result.tool_calls
    assert (made.name, made.parsed_arguments()) == ("get_time", {"city": "Genève"})


@pytest.mark.parametrize(
    ("options", "kind", "field"),
    [
        ({"max_tokens": 0}, InvalidArgument, "max_tokens"),
        ({"temperature": float("nan")}, InvalidArgument, "temperature"),
        ({"algorithm": "magic"}, InvalidArgument, "algorithm"),
        ({"block_length": 10_000}, InvalidArgument, "block_length"),
        ({"sampling_parameters": {"no_such": 1}}, InvalidArgument, ""),
        ({"sampling_parameters": {"beam_width": 2}}, Unsupported, ""),
    ],
)
def test_bad_requests_name_the_field(
    wide: TritonServer, options: dict[str, object], kind: type[Exception], field: str
) -> None:
    with Client(wide.grpc_url) as client, pytest.raises(kind, match=f"^{field}") as caught:
        client.generate(script(), **options)  # type: ignore[arg-type]
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value) and "in ensemble" not in str(caught.value)


def test_time_limits(wide: TritonServer) -> None:
    slow = script(delay=0.3)
    with Client(wide.grpc_url, retry=ONCE) as client:
        started = time.monotonic()
        result = client.generate(slow, max_tokens=500, deadline=1.5)
        assert time.monotonic() - started < 1.5
        # A character that was cut in two ends as the replacement character.
        assert result.finish_reason == "timeout" and TEXT.startswith(result.text.rstrip("\ufffd"))
        with pytest.raises(ServerSilent):
            client.generate(script(first_delay=3), silence_timeout=0.5)
        with pytest.raises(DeadlineExceeded):
            client.generate(script(), deadline=0.001)


def test_cancel_and_go_on(wide: TritonServer) -> None:
    with Client(wide.grpc_url) as client:
        for _ in range(20):
            with client.stream(script(delay=0.2), max_tokens=500) as stream:
                assert TEXT.startswith(next(stream).text)
        assert client.generate(script(), max_tokens=500).text == TEXT


def test_health_and_the_command_line(wide: TritonServer) -> None:
    with Client(wide.grpc_url) as client:
        health = client.health()
    assert health.is_healthy
    assert {"ensemble", "unary", "block_diffusion"} <= {model.name for model in health.models}
    assert health.limits["max_queue_size"] == 256
    runner = CliRunner(env={"BLOCKDIFF_URL": wide.grpc_url})
    done = runner.invoke(app, ["generate", script(), "--max-tokens", "500"])
    assert (done.exit_code, done.stdout) == (0, TEXT + "\n")
    done = runner.invoke(app, ["generate", script(), "--max-tokens", "0"])
    assert done.exit_code == 2 and done.stderr.startswith("error: max_tokens: ")
    assert runner.invoke(app, ["health"]).exit_code == 0


def test_the_trained_model_in_a_chat(demo: TritonServer) -> None:
    runner = CliRunner(env={"BLOCKDIFF_URL": demo.grpc_url})
    done = runner.invoke(app, ["chat", "--no-thinking"], input="sort 52 7 31 88\n")
    assert (done.exit_code, done.stdout) == (0, "7 31 52 88\n")
