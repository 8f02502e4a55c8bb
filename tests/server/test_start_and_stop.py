"""Starting refuses what is unsafe, with file and line; stopping lets running streams finish."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdiff.embedded import ServerError, TritonServer
from blockdiff.serving.drain import drain

from .calls import HttpStream, Stream, joined, metric, script, wait_until
from .conftest import set_field
from .test_order_and_cancel import free

pytestmark = pytest.mark.server

MakeServer = Callable[..., TritonServer]
MakeRepository = Callable[..., Path]


def refused(server: TritonServer) -> str:
    with server, pytest.raises(ServerError):
        server.start(timeout=60)
    return server.log_path.read_text()


def test_unsafe_postprocessing_is_refused(
    make_server: MakeServer, make_repository: MakeRepository
) -> None:
    repository = make_repository()
    path = repository / "postprocessing" / "config.pbtxt"
    set_field(path, "count", "2,")
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "count: 2" in text)
    log = refused(make_server(repository))
    assert f"postprocessing/config.pbtxt line {line}: instance_group: got 2 of KIND_CPU" in log
    assert "Traceback" not in log


def test_unsafe_engine_is_refused(make_server: MakeServer, make_repository: MakeRepository) -> None:
    repository = make_repository()
    path = repository / "block_diffusion" / "config.pbtxt"
    text = path.read_text()
    path.write_text(text[: text.index("dynamic_batching")] + text[text.index("# An empty value") :])
    log = refused(make_server(repository))
    assert re.search(r"block_diffusion/config.pbtxt line \d+: dynamic_batching must be", log)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"BLOCKDIFF_SLOTS": "many"}, "BLOCKDIFF_SLOTS: got 'many', allowed 1 to 4096"),
        ({"BLOCKDIFF_MODEL": "/nowhere"}, "/nowhere/tokenizer.json: no such file"),
    ],
)
def test_bad_settings_are_one_line(
    make_server: MakeServer,
    make_repository: MakeRepository,
    environment: dict[str, str],
    says: str,
) -> None:
    log = refused(make_server(make_repository(), environment=environment))
    assert says in log
    assert "Traceback" not in log


def test_a_drained_server_loses_no_stream(
    make_server: MakeServer, make_repository: MakeRepository
) -> None:
    """Two run, one waits inside execute; newcomers are refused; then SIGTERM ends it at once."""
    text = "one two three four five six"
    values = {"text_input": script(text, block=4, delay=0.5), "stream": True}
    with make_server(make_repository(), slots=2) as server:
        server.start()
        settings = server.environment
        over_http: list[dict[str, Any]] = []
        with Stream(server) as stream:
            reader = threading.Thread(
                target=lambda: over_http.extend(HttpStream(server, values).events())
            )
            reader.start()
            stream.send(values, request_id="running")
            wait_until(lambda: free(server) == 0, 5, "both run")
            stream.send(values, request_id="in execute")
            wait_until(lambda: metric(server, "blockdiff_waiting_requests") == 1, 10, "one waits")
            relay, beat = settings["BLOCKDIFF_RELAY_SOCKET"], settings["BLOCKDIFF_HEARTBEAT_FILE"]
            emptied: list[bool] = []
            drainer = threading.Thread(
                target=lambda: emptied.append(drain(Path(relay), Path(beat), 30))
            )
            drainer.start()
            time.sleep(0.3)
            stream.send(values, request_id="late")
            answers = stream.collect(3)
        reader.join()
        drainer.join()
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 15
    assert emptied == [True]
    assert joined(over_http).text == text
    assert joined([r.values for r in answers.pop("running")]).text == text
    assert joined([r.values for r in answers.pop("in execute")]).text == text
    ((late,),) = answers.values()
    assert "the server is shutting down; retry after" in str(late.error)


def test_idle_server_stops_quickly(
    make_server: MakeServer, make_repository: MakeRepository
) -> None:
    with make_server(make_repository(), slots=2) as server:
        server.start()
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 15
