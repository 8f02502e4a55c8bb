"""The client against the real tritonserver, with a model whose answers the test scripts.

Shows what the in-process stand-in only claims: how Triton ends streams, codes errors, names
ensembles, relays cancellation and timeouts, and refuses what its queue cannot hold.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from blockdiff.embedded import TritonServer
from blockdiff_client import (
    AsyncClient,
    Cancelled,
    Client,
    ClientError,
    Connection,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    RetryPolicy,
    ServerError,
    ServerSilent,
    Unavailable,
    Unsupported,
)

from .triton import write_repository

pytestmark = pytest.mark.server

ONCE = RetryPolicy(attempts=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("triton")
    repository = write_repository(folder / "repository")
    log_path = folder / "server.log"
    with TritonServer(repository, log_path=log_path, exit_timeout_seconds=25) as started:
        started.start(120)
        yield started
        started.stop()
    # A request that the server never lets go of keeps it from ending.
    assert "Exit timeout expired" not in log_path.read_text()


@pytest.fixture(scope="module")
def real(server: TritonServer) -> Iterator[Client]:
    with Client(server.grpc_url) as client:
        yield client


def script(*steps: dict[str, Any]) -> str:
    return json.dumps(steps)


ANSWER = script(
    {"text": "a", "index": 0},
    {"text": "é", "index": 1},
    {"text": "", "index": 2, "final": True, "flag": True},
)


@pytest.mark.parametrize("model", ["scripted", "ensemble"])
def test_an_answer(real: Client, model: str) -> None:
    result = real.generate(ANSWER, model=model, request_id="r1")
    assert (result.text, result.finish_reason) == ("aé", "stop")
    assert [block.block_index for block in result.blocks] == [0, 1, 2]
    assert (result.num_output_tokens, result.denoise_steps) == (12, 6)


@pytest.mark.parametrize("model", ["scripted", "ensemble"])
def test_a_final_flag_that_comes_alone(real: Client, model: str) -> None:
    both = script({"text": "a", "final": True}, {"sleep": 0.2}, {"flag_only": True})
    assert real.generate(both, model=model).text == "a"
    flag = script({"text": "a"}, {"sleep": 0.2}, {"flag_only": True})
    result = real.generate(flag, model=model)
    assert (result.text, len(result.blocks)) == ("a", 2)
    assert result.blocks[-1].is_final


ERRORS: list[tuple[str, str, type[ClientError]]] = [
    ("INVALID_ARG", "max_tokens: got 0, allowed 1 to 4096", InvalidArgument),
    ("UNAVAILABLE", "the engine is shutting down; retry after about 1 s", Unavailable),
    ("UNSUPPORTED", "bad_words: not supported; leave it out", Unsupported),
    ("CANCELLED", "the request was cancelled", Cancelled),
    ("INTERNAL", "postprocessing: internal error (KeyError)", ServerError),
]


@pytest.mark.parametrize(("code", "text", "kind"), ERRORS)
@pytest.mark.parametrize("is_later", [False, True])
def test_errors_keep_their_kind_and_lose_their_prefix(
    real: Client, code: str, text: str, kind: type[ClientError], is_later: bool
) -> None:
    # The pause is for the server: an ensemble whose step fails while a block is in the next step
    # never ends (Triton 2.51).
    first = ({"text": "a"}, {"sleep": 0.1}) if is_later else ()
    steps = script(*first, {"error": text, "code": code})
    for model, ensemble in (("scripted", None), ("ensemble", "ensemble")):
        with pytest.raises(kind) as caught:
            real.generate(steps, model=model, retry=ONCE, request_id="r1")
        assert type(caught.value) is kind
        assert str(caught.value) == text
        assert caught.value.ensemble == ensemble


def test_status_codes_when_asked_for(server: TritonServer) -> None:
    connection = Connection(server.grpc_url, status_errors=True)
    codes = {
        "INVALID_ARG": InvalidArgument,
        "UNAVAILABLE": Unavailable,
        "UNSUPPORTED": Unsupported,
        "NOT_FOUND": NotFound,
        "CANCELLED": Cancelled,
        "INTERNAL": ServerError,
        "UNKNOWN": ServerError,
    }
    with Client(connection=connection, retry=ONCE) as client:
        for code, kind in codes.items():
            with pytest.raises(kind, match="^no$") as caught:
                client.generate(script({"error": "no", "code": code}))
            assert type(caught.value) is kind
            assert caught.value.ensemble == "ensemble"


def test_an_unknown_model_and_an_unknown_input(real: Client) -> None:
    with pytest.raises(NotFound, match="unknown model"):
        real.generate("x", model="nosuch")
    with pytest.raises(InvalidArgument, match="max_tokens"):
        real.generate(ANSWER, max_tokens=3)


def test_the_stream_is_open_for_the_next_request_after_an_error(real: Client) -> None:
    with pytest.raises(ServerError):
        real.generate(script({"error": "no", "code": "INVALID_ARG"}))
    assert real.generate(ANSWER).text == "aé"


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_cancel_reaches_the_model(real: Client, tmp_path: Path, how: str) -> None:
    seen = tmp_path / "seen"
    text = script({"text": "a"}, {"watch": str(seen)})
    with real.stream(text, model="scripted") as stream:
        assert next(stream).text == "a"
        if how == "cancel":
            stream.cancel()
            with pytest.raises(Cancelled):
                next(stream)
    wait_for(seen)


def test_the_deadline_cancels_and_is_known_to_the_model(real: Client, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    with real.stream(
        script({"timeout": True}, {"watch": str(seen)}), model="ensemble", deadline=1.0
    ) as stream:
        # What is left of it when the call leaves, and a margin less.
        assert 0 < int(next(stream).text) < 1_000_000
        with pytest.raises(DeadlineExceeded):
            next(stream)
    with pytest.raises(DeadlineExceeded):
        real.generate(script({"watch": str(seen)}), model="scripted", deadline=0.5)
    wait_for(seen)


def test_silence(real: Client, tmp_path: Path) -> None:
    text = script({"text": "a"}, {"watch": str(tmp_path / "seen")})
    with pytest.raises(ServerSilent):
        real.generate(text, model="scripted", silence_timeout=0.5)
    wait_for(tmp_path / "seen")


def wait_for(path: Path) -> None:
    end = time.monotonic() + 5
    while not path.exists():
        assert time.monotonic() < end, "the model did not see the cancellation"
        time.sleep(0.02)


def test_a_full_queue_is_unavailable_and_retried(real: Client) -> None:
    slow = script({"block": True}, {"sleep": 1.5}, {"text": "a", "final": True, "flag": True})
    running = []
    for _ in range(2):
        running.append(real.stream(slow, model="queued"))
        time.sleep(0.3)
    with pytest.raises(Unavailable, match="maximum queue size"):
        real.generate(slow, model="queued", retry=ONCE)
    patient = RetryPolicy(attempts=30, base=0.2, cap=0.2)
    assert real.generate(slow, model="queued", retry=patient).text == "a"
    assert [stream.result().text for stream in running] == ["a", "a"]


def test_many_streams_at_once(real: Client) -> None:
    with ThreadPoolExecutor(60) as pool:
        results = list(pool.map(lambda _: real.generate(ANSWER, priority=1), range(200)))
    assert {result.text for result in results} == {"aé"}


def test_async(server: TritonServer, tmp_path: Path) -> None:
    async def body() -> list[str]:
        async with AsyncClient(server.grpc_url) as client:
            assert (await client.health()).is_healthy
            with pytest.raises(ServerError, match="^no$") as caught:
                await client.generate(script({"error": "no", "code": "INVALID_ARG"}))
            assert caught.value.ensemble == "ensemble"
            async with client.stream(
                script({"text": "a"}, {"watch": str(tmp_path / "seen")}), model="scripted"
            ) as stream:
                await anext(stream)
            many = await asyncio.gather(*(client.generate(ANSWER) for _ in range(100)))
            return [result.text for result in many]

    assert set(asyncio.run(body())) == {"aé"}
    wait_for(tmp_path / "seen")


def test_health(server: TritonServer, real: Client) -> None:
    health = real.health()
    assert health.is_healthy and health.server_version.startswith("triton 2.")
    assert {model.name for model in health.models} == {"ensemble", "queued", "relay", "scripted"}
    with Client(server.grpc_url, model="queued") as client:
        limits = client.health().limits
    assert limits == {"max_context": 512, "max_queue_size": 1}


def test_a_server_that_comes_up_late(tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "repository")
    with TritonServer(repository, log_path=tmp_path / "server.log") as late:
        url = late.grpc_url
        starter = threading.Thread(target=late.start, args=(120,))
        starter.start()
        try:
            with Client(url, retry=RetryPolicy(attempts=300, base=0.2, cap=0.2)) as client:
                assert client.generate(ANSWER, deadline=100).text == "aé"
        finally:
            starter.join()
