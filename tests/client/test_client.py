"""The blocking client against a scripted server: blocks, finals, errors, retries, sharing."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from blockdiff_client import (
    Cancelled,
    Client,
    ClientError,
    Connection,
    InvalidArgument,
    NotFound,
    ServerError,
    Unavailable,
)

from .fake_server import (
    Abort,
    Block,
    FakeTriton,
    FlagOnly,
    Hang,
    InBand,
    Pause,
    Step,
    answer,
    tool_call_json,
)

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def test_generate_joins_the_blocks(fake: FakeTriton, client: Client) -> None:
    fake.default = [
        Block("12", 0, steps=3, tokens=4, reasoning="carry", log_probs=(-0.5, -0.25)),
        Block("3", 1, steps=1, tokens=2, tool_calls=tool_call_json("f", x=1), threshold=0.9),
        Block("", 2, 1, 1, final=True, flag=True, finish="stop", stop="151645", threshold=-1.0),
    ]
    result = client.generate("458+367", max_tokens=9, request_id="r1")
    assert (result.text, result.reasoning, result.request_id) == ("123", "carry", "r1")
    assert (result.finish_reason, result.stop_reason) == ("stop", "151645")
    assert (result.num_input_tokens, result.num_output_tokens, result.denoise_steps) == (7, 7, 5)
    assert result.log_probs == (-0.5, -0.25)
    # left out by an older server, given, and no threshold at all
    assert [block.threshold for block in result.blocks] == [None, 0.9, None]
    assert result.tool_calls[0].parsed_arguments() == {"x": 1}
    assert result.tokens_per_forward == pytest.approx(1.4)
    assert [block.is_final for block in result.blocks] == [False, False, True]
    assert [block.finish_reason for block in result.blocks] == [None, None, "stop"]
    seen = fake.seen[0]
    assert seen.inputs["max_tokens"] == 9
    assert "triton_grpc_error" not in seen.metadata
    assert "timeout" not in seen.request.parameters


def test_blocks_are_handed_out_as_they_arrive(fake: FakeTriton, client: Client) -> None:
    fake.default = [Block("a", 0), Pause(0.5), *answer("b")]
    with client.stream("x") as stream:
        first = next(stream)
        assert first.text == "a" and first.elapsed < 0.4
        assert next(stream).elapsed >= 0.5
        with pytest.raises(StopIteration):
            next(stream)


SPLIT: dict[str, list[Step]] = {
    "data carries is_final, flag follows": [Block("a", final=True, finish="stop"), FlagOnly()],
    "only the flag says final": [Block("a"), FlagOnly()],
    "is_final without any flag": [Block("a", final=True, finish="stop")],
    "flag alone on the data": [Block("a", flag=True, finish="stop")],
}


@pytest.mark.parametrize("name", SPLIT)
def test_final_shapes(fake: FakeTriton, client: Client, name: str) -> None:
    fake.default = SPLIT[name]
    result = client.generate("x")
    assert result.text == "a"
    assert [block.is_final for block in result.blocks].count(True) == 1
    assert result.blocks[-1].is_final
    assert fake.seen[0].ended.wait(2)
    assert not fake.seen[0].cancelled.is_set()


def test_a_split_final_does_not_delay_the_last_text(fake: FakeTriton, client: Client) -> None:
    fake.default = [Block("a", final=True, finish="stop"), Pause(0.5), FlagOnly()]
    with client.stream("x") as stream:
        assert next(stream).elapsed < 0.4
    assert fake.seen[0].ended.wait(2)


def test_a_server_that_never_closes_after_the_final_block(fake: FakeTriton, client: Client) -> None:
    fake.default = [*answer("a"), Hang()]
    started = time.monotonic()
    assert client.generate("x").text == "a"
    assert time.monotonic() - started < 3


def test_a_stream_without_final_is_an_error(fake: FakeTriton, client: Client) -> None:
    fake.default = [Block("a")]
    with pytest.raises(ServerError, match="before the final block"):
        client.generate("x")


def test_blocks_out_of_order_are_an_error(fake: FakeTriton, client: Client) -> None:
    fake.default = [Block("a", 1), Block("b", 0)]
    with pytest.raises(ServerError, match="block 0 arrived after block 1"):
        client.generate("x")


def test_unavailable_before_the_first_block_is_retried(fake: FakeTriton, client: Client) -> None:
    fake.scripts = [[Abort(UNAVAILABLE, "in ensemble 'e', Exceeds maximum queue size")]] * 2
    assert client.generate("x").text == "hello world"
    assert len(fake.seen) == 3


def test_retries_end(fake: FakeTriton, client: Client) -> None:
    fake.default = [Abort(UNAVAILABLE, "in ensemble 'e', Exceeds maximum queue size")]
    with pytest.raises(Unavailable, match="^Exceeds") as caught:
        client.generate("x")
    assert len(fake.seen) == 3
    assert caught.value.ensemble == "e"


def test_nothing_is_retried_after_a_block(fake: FakeTriton, client: Client) -> None:
    fake.default = [Block("a"), Abort(UNAVAILABLE, "stopping")]
    with client.stream("x") as stream:
        assert next(stream).text == "a"
        with pytest.raises(Unavailable, match="stopping"):
            next(stream)
        assert stream.generation.text == "a"
    assert len(fake.seen) == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgument),
        (grpc.StatusCode.NOT_FOUND, NotFound),
        (grpc.StatusCode.INTERNAL, ServerError),
        (grpc.StatusCode.CANCELLED, Cancelled),
    ],
)
def test_other_errors_are_never_retried(
    fake: FakeTriton, client: Client, code: grpc.StatusCode, kind: type[ClientError]
) -> None:
    fake.default = [Abort(code, "no")]
    with pytest.raises(kind):
        client.generate("x")
    assert len(fake.seen) == 1


def test_in_band_errors_are_understood(fake: FakeTriton, client: Client) -> None:
    # The pause is the server's clean-up, which must not be cut short by a cancel.
    fake.scripts = [[InBand("in ensemble 'e', Exceeds maximum queue size"), Pause(0.2)]]
    assert client.generate("x").text == "hello world"
    fake.scripts = [[Block("a"), InBand("Exceeds maximum queue size"), Pause(0.2)]]
    with pytest.raises(Unavailable):
        client.generate("x")
    fake.scripts = [[InBand("top_p: got 2, allowed above 0 up to 1; retry after 1 s")]]
    with pytest.raises(InvalidArgument, match="^top_p: got 2"):
        client.generate("x")
    assert len(fake.seen) == 4
    assert not any(seen.cancelled.is_set() for seen in fake.seen)


def test_an_error_in_a_stream_that_stays_open(fake: FakeTriton, client: Client) -> None:
    fake.default = [Block("a"), InBand("boom"), Hang()]
    with pytest.raises(ServerError, match="boom"):
        client.generate("x")
    assert fake.seen[0].cancelled.wait(2)


def test_many_threads_share_one_client(fake: FakeTriton, client: Client) -> None:
    fake.default = [Block("a"), Pause(0.2), Block("b", 1, final=True, flag=True, finish="stop")]
    with ThreadPoolExecutor(50) as pool:
        results = list(pool.map(lambda i: client.generate("x", request_id=f"r{i}"), range(50)))
    assert {result.text for result in results} == {"ab"}
    assert {result.request_id for result in results} == {f"r{i}" for i in range(50)}
    assert len(fake.seen) == 50


def test_one_thread_may_hold_many_streams(fake: FakeTriton, client: Client) -> None:
    streams = [client.stream("x") for _ in range(10)]
    for _ in range(2):
        assert len({next(stream).text for stream in streams}) == 1


def test_priority_headers_and_model_are_sent(fake: FakeTriton) -> None:
    headers = {"Authorization": "Bearer k"}
    connection = Connection(f"grpc://{fake.url}", headers=headers, status_errors=True)
    with Client(connection=connection) as client:
        client.generate("x", priority=1, model="other")
    seen = fake.seen[0]
    assert seen.request.parameters["priority"].uint64_param == 1
    assert (seen.request.model_name, seen.metadata["authorization"]) == ("other", "Bearer k")
    assert seen.metadata["triton_grpc_error"] == "true"
