"""Deadlines, silence and cancellation of the blocking client."""

from __future__ import annotations

import gc
import threading
import time

import grpc
import pytest

from blockdiff_client import (
    Cancelled,
    Client,
    ClientError,
    DeadlineExceeded,
    InvalidArgument,
    RetryPolicy,
    ServerSilent,
    Unavailable,
)

from .fake_server import (
    Abort,
    Block,
    FakeTriton,
    Hang,
    Pause,
    Step,
    answer,
)

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def test_the_deadline_is_kept_here_and_sent_to_the_server(fake: FakeTriton, client: Client) -> None:
    fake.default = [Block("a"), Hang()]
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"deadline of 0.5 s passed after 1 blocks"):
        client.generate("x", deadline=0.5)
    assert 0.4 < time.monotonic() - started < 1.5
    assert 400_000 < fake.seen[0].request.parameters["timeout"].int64_param < 500_000
    assert fake.seen[0].cancelled.wait(2)


def test_the_deadline_bounds_retries(fake: FakeTriton) -> None:
    fake.default = [Abort(UNAVAILABLE, "full")]
    with Client(fake.url, retry=RetryPolicy(100, 0.1, 0.1)) as client:
        started = time.monotonic()
        with pytest.raises((Unavailable, DeadlineExceeded)):
            client.generate("x", deadline=0.4)
        assert time.monotonic() - started < 1
    timeouts = [seen.request.parameters["timeout"].int64_param for seen in fake.seen]
    assert timeouts == sorted(timeouts, reverse=True)


def test_no_retry_is_waited_for_beyond_the_deadline(fake: FakeTriton) -> None:
    fake.default = [Abort(UNAVAILABLE, "full")]
    with Client(fake.url, retry=RetryPolicy(100, 30, 30)) as client:
        with pytest.raises(Unavailable) as caught:
            client.generate("x", deadline=10.0)
        assert str(caught.value) == "full"
    assert len(fake.seen) == 1


def test_a_partial_answer_at_the_servers_timeout_is_an_answer(
    fake: FakeTriton, client: Client
) -> None:
    fake.default = answer("part", finish="timeout")
    assert client.generate("x", deadline=5.0).finish_reason == "timeout"


@pytest.mark.parametrize("script", [[Hang()], [Block("a"), Hang()]])
def test_silence_is_noticed_and_not_retried(
    fake: FakeTriton, client: Client, script: list[Step]
) -> None:
    fake.default = script
    started = time.monotonic()
    with pytest.raises(ServerSilent, match=r"for 0.3 s"):
        client.generate("x", silence_timeout=0.3)
    assert time.monotonic() - started < 2
    assert len(fake.seen) == 1
    assert fake.seen[0].cancelled.wait(2)


def test_a_slow_reader_is_not_silence(fake: FakeTriton, client: Client) -> None:
    fake.default = answer("a", "b")
    with client.stream("x", silence_timeout=0.2) as stream:
        next(stream)
        time.sleep(0.5)
        assert next(stream).text == "b"


def test_slow_blocks_within_the_limit_are_fine(fake: FakeTriton, client: Client) -> None:
    last = Block("c", 2, final=True, flag=True, finish="stop")
    fake.default = [Block("a"), Pause(0.3), Block("b", 1), Pause(0.3), last]
    assert client.generate("x", silence_timeout=0.5).text == "abc"


def test_leaving_the_with_block_cancels(fake: FakeTriton, client: Client) -> None:
    fake.default = [Block("a"), Hang()]
    with client.stream("x") as stream:
        next(stream)
    assert fake.seen[0].cancelled.wait(2)
    assert list(stream) == []


def test_dropping_the_stream_cancels(fake: FakeTriton, client: Client) -> None:
    fake.default = [Block("a"), Hang()]
    stream = client.stream("x")
    next(stream)
    del stream
    gc.collect()
    assert fake.seen[0].cancelled.wait(2)


def test_cancel_from_another_thread(fake: FakeTriton, client: Client) -> None:
    fake.default = [Hang()]
    with client.stream("x") as stream:
        threading.Timer(0.2, stream.cancel).start()
        with pytest.raises(Cancelled):
            next(stream)
    assert fake.seen[0].cancelled.wait(2)


def test_cancel_during_the_wait_before_a_retry(fake: FakeTriton) -> None:
    fake.default = [Abort(UNAVAILABLE, "full")]
    with Client(fake.url, retry=RetryPolicy(5, 30, 30)) as client, client.stream("x") as stream:
        threading.Timer(0.2, stream.cancel).start()
        started = time.monotonic()
        with pytest.raises(Cancelled):
            next(stream)
        assert time.monotonic() - started < 2


def test_closing_the_client_ends_its_streams(fake: FakeTriton) -> None:
    fake.default = [Block("a"), Hang()]
    client = Client(fake.url)
    stream = client.stream("x")
    next(stream)
    client.close()
    with pytest.raises(Cancelled):
        next(stream)
    with pytest.raises(ClientError, match="closed"):
        client.generate("x")
    assert fake.seen[0].cancelled.wait(2)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_senseless_limits_are_refused(client: Client, seconds: float) -> None:
    with pytest.raises(InvalidArgument, match="deadline"):
        client.generate("x", deadline=seconds)
