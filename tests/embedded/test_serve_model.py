"""`blockdiff serve` with the demo checkpoint: what callers see when the engine dies or we stop."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockdiff.embedded.processes import stubs_of
from blockdiff_client import Client
from blockdiff_client.errors import Unavailable
from tests.embedded.conftest import all_ended

pytestmark = [pytest.mark.server, pytest.mark.chaos]

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = os.environ.get("BLOCKDIFF_TEST_CHECKPOINT", str(ROOT / "demo" / "checkpoint"))


class Serving:
    """A running `blockdiff serve` and where it listens."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "blockdiff.cli.main", "serve", "--model", CHECKPOINT]
            + ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
            + ["--slots", "2", "--threads", "1", "--format", "json", *flags],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.urls = self.wait_ready()

    def wait_ready(self) -> dict:
        """The next announcement; one follows every start."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def stubs(self, model: str) -> list[int]:
        return [pid for pid, name in stubs_of(self.urls["pid"]).items() if name == model]


@pytest.fixture
def serving() -> Iterator[Serving]:
    made = Serving()
    yield made
    made.process.terminate()
    try:
        made.process.wait(60)
    finally:
        made.process.kill()
        made.process.communicate()


def long_answer(client: Client):
    """A stream of many blocks, whatever the checkpoint says."""
    return client.stream("sort 52 7 31 88", max_tokens=200, ignore_eos=True, denoise_steps=16)


def test_dead_engine_is_seen_within_seconds_and_replaced(serving):
    with Client(serving.urls["grpc"]) as client:
        with long_answer(client) as stream:
            next(stream)
            os.kill(serving.stubs("block_diffusion")[0], signal.SIGKILL)
            killed_at = time.monotonic()
            with pytest.raises(Unavailable):
                for _ in stream:
                    pass
            assert time.monotonic() - killed_at < 5
        with pytest.raises(Unavailable):
            client.generate("sort 1 2", max_tokens=16, deadline=5)
        assert time.monotonic() - killed_at < 12
    assert serving.wait_ready()["grpc"] == serving.urls["grpc"]
    with Client(serving.urls["grpc"]) as client:
        assert client.generate("sort 1 2", max_tokens=16).finish_reason in ("stop", "length")


def test_running_ensemble_stream_finishes_when_serve_is_stopped(serving):
    with Client(serving.urls["grpc"]) as client, long_answer(client) as stream:
        next(stream)
        serving.process.send_signal(signal.SIGTERM)
        blocks = list(stream)
    assert blocks[-1].is_final
    assert [block.block_index for block in blocks] == list(range(1, len(blocks) + 1))
    assert serving.process.wait(30) == 0
    assert all_ended([serving.urls["pid"]])
