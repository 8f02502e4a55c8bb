"""A served model on two ranks: the same answers, and a restart when one of them is killed.

Run: pytest tests/parallel/test_serve.py
"""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from blockdiff_client import Client
from blockdiff_client.errors import Unavailable
from tests.embedded.test_serve_model import Serving, long_answer

from .processes import children_of, is_running, wait_until

pytestmark = [pytest.mark.server, pytest.mark.chaos]

WITHIN_SECONDS = 10.0


@pytest.fixture
def serving() -> Iterator[Serving]:
    made = Serving("--tensor-parallel", "2")
    try:
        yield made
    finally:
        made.process.terminate()
        made.process.communicate(timeout=60)


def follower_of(serving: Serving) -> int:
    (stub,) = serving.stubs("block_diffusion")
    (follower,) = children_of(stub)
    return follower


def test_killed_follower_restarts_the_server(serving: Serving) -> None:
    follower = follower_of(serving)
    with Client(serving.urls["grpc"]) as client:
        question = [{"role": "user", "content": "sort 52 7 31 88"}]
        answer = client.generate(messages=question, max_tokens=32)
        assert answer.text.strip() == "7 31 52 88"
        with long_answer(client) as stream:
            next(stream)
            os.kill(follower, signal.SIGKILL)
            killed_at = time.monotonic()
            with pytest.raises(Unavailable, match=f"rank 1 .pid {follower}. died"):
                for _ in stream:
                    pass
            assert time.monotonic() - killed_at < WITHIN_SECONDS
    serving.urls = serving.wait_ready()
    another = follower_of(serving)
    assert another != follower
    with Client(serving.urls["grpc"]) as client:
        assert client.generate("sort 1 2", max_tokens=16).finish_reason in ("stop", "length")
    serving.process.send_signal(signal.SIGTERM)
    assert serving.process.wait(60) == 0
    wait_until(lambda: not is_running(another), "the follower ends with the server")
