"""The asyncio client against the scripted server: the same behaviour as the blocking one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from blockdiff_client import (
    AsyncClient,
    Cancelled,
    ClientError,
    DeadlineExceeded,
    InvalidArgument,
    RetryPolicy,
    ServerError,
    ServerSilent,
    Unavailable,
)

from .fake_server import Abort, Block, FakeTriton, FlagOnly, Hang, InBand, Pause, Step, free_port

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
FAST = RetryPolicy(attempts=3, base=0.01, cap=0.02)


def run(url: str, body: Callable[[AsyncClient], Awaitable[Any]], retry: RetryPolicy = FAST) -> Any:
    async def main() -> Any:
        async with AsyncClient(url, retry=retry) as client:
            return await asyncio.wait_for(body(client), 10)

    return asyncio.run(main())


def test_generate(fake: FakeTriton) -> None:
    result = run(fake.url, lambda client: client.generate("x", max_tokens=3))
    assert (result.text, result.num_output_tokens) == ("hello world", 8)
    assert fake.seen[0].inputs["max_tokens"] == 3
    assert not fake.seen[0].cancelled.is_set()


def test_blocks_are_handed_out_as_they_arrive(fake: FakeTriton) -> None:
    fake.default = [Block("a"), Pause(0.5), Block("b", 1, final=True), FlagOnly()]

    async def body(client: AsyncClient) -> list[float]:
        return [event.elapsed async for event in client.stream("x")]

    first, second = run(fake.url, body)
    assert first < 0.4 and second >= 0.5


@pytest.mark.parametrize(
    "script",
    [
        [Block("a", final=True, finish="stop"), FlagOnly()],
        [Block("a"), FlagOnly()],
        [Block("a", flag=True)],
    ],
)
def test_final_shapes(fake: FakeTriton, script: list[Step]) -> None:
    fake.default = script
    result = run(fake.url, lambda client: client.generate("x"))
    assert result.text == "a" and result.blocks[-1].is_final
    assert fake.seen[0].ended.wait(2) and not fake.seen[0].cancelled.is_set()


def test_retry_before_and_not_after_the_first_block(fake: FakeTriton) -> None:
    fake.scripts = [[Abort(UNAVAILABLE, "full")]] * 2
    assert run(fake.url, lambda client: client.generate("x")).text == "hello world"
    fake.scripts = [[Block("a"), Abort(UNAVAILABLE, "stopping")]]
    with pytest.raises(Unavailable, match="stopping"):
        run(fake.url, lambda client: client.generate("x"))
    assert len(fake.seen) == 4


def test_errors_are_typed_and_not_retried(fake: FakeTriton) -> None:
    text = "max_tokens: got 0, allowed 1 or more"
    fake.scripts = [
        [Abort(grpc.StatusCode.INVALID_ARGUMENT, text)],
        [InBand(f"in ensemble 'e', {text}"), Pause(0.2)],
        [Block("a")],
    ]
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="^max_tokens"):
            run(fake.url, lambda client: client.generate("x"))
    with pytest.raises(ServerError, match="before the final block"):
        run(fake.url, lambda client: client.generate("x"))
    assert len(fake.seen) == 3
    assert not fake.seen[1].cancelled.is_set()


@pytest.mark.parametrize(
    ("options", "kind"),
    [({"deadline": 0.4}, DeadlineExceeded), ({"silence_timeout": 0.4}, ServerSilent)],
)
def test_time_limits(fake: FakeTriton, options: dict[str, Any], kind: type[ClientError]) -> None:
    fake.default = [Block("a"), Hang()]
    started = time.monotonic()
    with pytest.raises(kind):
        run(fake.url, lambda client: client.generate("x", **options))
    assert 0.3 < time.monotonic() - started < 2
    assert fake.seen[0].cancelled.wait(2)
    assert len(fake.seen) == 1


def test_cancel_by_method(fake: FakeTriton) -> None:
    fake.default = [Hang()]

    async def body(client: AsyncClient) -> None:
        stream = client.stream("x")
        asyncio.get_running_loop().call_later(0.2, stream.cancel)
        await stream.result()

    with pytest.raises(Cancelled):
        run(fake.url, body)
    assert fake.seen[0].cancelled.wait(2)


def test_cancel_during_the_wait_before_a_retry(fake: FakeTriton) -> None:
    fake.default = [Abort(UNAVAILABLE, "full")]

    async def body(client: AsyncClient) -> None:
        stream = client.stream("x")
        asyncio.get_running_loop().call_later(0.2, stream.cancel)
        await stream.result()

    with pytest.raises(Cancelled):
        run(fake.url, body, RetryPolicy(5, 30, 30))


def test_cancelling_the_task_cancels_the_call(fake: FakeTriton) -> None:
    fake.default = [Block("a"), Hang()]

    async def body(client: AsyncClient) -> bool:
        task = asyncio.create_task(client.generate("x"))
        await asyncio.to_thread(fake.wait_for_requests, 1)
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(fake.seen[0].cancelled.wait, 2)

    assert run(fake.url, body)


def test_leaving_the_with_block_cancels(fake: FakeTriton) -> None:
    fake.default = [Block("a"), Hang()]

    async def body(client: AsyncClient) -> bool:
        async with client.stream("x") as stream:
            await anext(stream)
        assert [event async for event in stream] == []
        return await asyncio.to_thread(fake.seen[0].cancelled.wait, 2)

    assert run(fake.url, body)


def test_many_streams_at_once(fake: FakeTriton) -> None:
    fake.default = [Block("a"), Pause(0.2), Block("b", 1, final=True, flag=True)]

    async def body(client: AsyncClient) -> list[Any]:
        return await asyncio.gather(*(client.generate("x") for _ in range(50)))

    assert {result.text for result in run(fake.url, body)} == {"ab"}


def test_a_closed_client_refuses(fake: FakeTriton) -> None:
    async def body(client: AsyncClient) -> None:
        await client.aclose()
        await client.generate("x")

    with pytest.raises(ClientError, match="closed"):
        run(fake.url, body)


def test_health(fake: FakeTriton) -> None:
    health = run(fake.url, lambda client: client.health())
    assert health.is_healthy and health.limits["max_context"] == 512
    health = run(f"127.0.0.1:{free_port()}", lambda client: client.health())
    assert not health.is_healthy and health.error
